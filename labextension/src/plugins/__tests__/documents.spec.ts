// SPDX-License-Identifier: BSD-3-Clause
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Signal } from '@lumino/signaling';

import { FakeModel, makeStatus } from '../../__tests__/fixtures';
import { documentsPlugin } from '../documents';

/** A front end with a notebook in front, and the tracker of notebooks. */
function makeFrontEnd(kernel: string): [JupyterFrontEnd, unknown] {
  const widget = { sessionContext: { session: { kernel: { id: kernel } } } };
  const signal = (): Signal<object, unknown> => new Signal({});
  const app = {
    serviceManager: {
      sessions: { running: () => [], runningChanged: signal() },
      kernelspecs: { specs: null }
    },
    shell: { currentWidget: widget }
  };
  const notebooks = {
    currentWidget: widget,
    currentChanged: signal(),
    widgetAdded: signal()
  };
  return [app as unknown as JupyterFrontEnd, notebooks];
}

const settle = (): Promise<void> => jest.advanceTimersByTimeAsync(200);

describe('the plugin of the documents', () => {
  beforeEach(() => {
    jest.useFakeTimers();
    jest.spyOn(document, 'hasFocus').mockReturnValue(true);
  });

  afterEach(() => {
    jest.restoreAllMocks();
    jest.useRealTimers();
  });

  it('reports the focus once the GPU is shared, until it is deactivated', async () => {
    const model = new FakeModel();
    const [app, notebooks] = makeFrontEnd('plots');
    const code = 'no_driver';
    await documentsPlugin.activate(app, model, notebooks, null, null);
    model.status = { ...makeStatus(), availability: { code, params: {} } };
    await settle();
    expect(model.fronts).toEqual([]);
    model.status = makeStatus();
    await settle();
    expect(model.fronts).toEqual(['plots']);
    await documentsPlugin.deactivate?.(app);
    model.status = { ...makeStatus(), stream: 'another server' };
    await settle();
    expect(model.fronts).toEqual(['plots']);
  });
});
