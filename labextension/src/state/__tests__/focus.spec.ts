// SPDX-License-Identifier: BSD-3-Clause
import { FocusReporter } from '../focus';
import { FakeDocuments } from '../../__tests__/notebooks';
import { FakeModel, makeStatus } from '../../__tests__/fixtures';

let focused: boolean;
let model: FakeModel;
let documents: FakeDocuments;
let reporter: FocusReporter;

beforeEach(() => {
  jest.useFakeTimers();
  focused = true;
  jest.spyOn(document, 'hasFocus').mockImplementation(() => focused);
  model = new FakeModel();
  documents = new FakeDocuments(model, 'plots');
  reporter = new FocusReporter(model, documents);
});

afterEach(() => {
  reporter.dispose();
  jest.restoreAllMocks();
  jest.useRealTimers();
});

/** Bring a document to the front. */
function show(kernel: string | null): void {
  documents.currentKernel = kernel;
  documents.changed.emit();
}

function focus(on: boolean): void {
  focused = on;
  window.dispatchEvent(new Event(on ? 'focus' : 'blur'));
}

const settle = (): Promise<void> => jest.advanceTimersByTimeAsync(200);

describe('the focus', () => {
  it('is reported once the GPU is shared, and when it changes', async () => {
    await settle();
    expect(model.fronts).toEqual([]);
    model.status = makeStatus();
    await settle();
    expect(model.fronts).toEqual(['plots']);
    // Nothing new.
    model.status = makeStatus();
    show('plots');
    await settle();
    show('train');
    await settle();
    show(null);
    await settle();
    expect(model.fronts).toEqual(['plots', 'train', null]);
  });

  it('is reported once a document stays active', async () => {
    model.status = makeStatus();
    await settle();
    for (const kernel of ['a', 'b', 'c']) {
      show(kernel);
      await jest.advanceTimersByTimeAsync(100);
    }
    expect(model.fronts).toEqual(['plots']);
    await settle();
    expect(model.fronts).toEqual(['plots', 'c']);
    show('a');
    show('c');
    await settle();
    expect(model.fronts).toEqual(['plots', 'c']);
  });

  it('ends when the page loses it, and is reported again', async () => {
    model.status = makeStatus();
    await settle();
    focus(false);
    await settle();
    show('train');
    await settle();
    focus(true);
    await settle();
    expect(model.fronts).toEqual(['plots', null, 'train']);
  });

  it('costs nothing while the page has none, or is hidden', async () => {
    focused = false;
    model.status = makeStatus();
    show('train');
    await settle();
    focused = true;
    const hidden = jest.spyOn(document, 'hidden', 'get').mockReturnValue(true);
    window.dispatchEvent(new Event('focus'));
    await settle();
    expect(model.fronts).toEqual([]);
    expect(jest.getTimerCount()).toBe(0);
    hidden.mockRestore();
    focus(true);
    await settle();
    expect(model.fronts).toEqual(['train']);
  });

  it('is not reported while nothing is shared, and is repeated to a new server', async () => {
    model.status = makeStatus();
    await settle();
    const code = 'scheduler_unreachable';
    model.status = { ...makeStatus(), availability: { code, params: {} } };
    show('train');
    await settle();
    focus(false);
    await settle();
    expect(model.fronts).toEqual(['plots']);
    focus(true);
    model.status = makeStatus();
    await settle();
    model.status = { ...makeStatus(), stream: 'another server' };
    await settle();
    expect(model.fronts).toEqual(['plots', 'train', 'train']);
  });

  it('reports nothing after it is disposed', async () => {
    model.status = makeStatus();
    reporter.dispose();
    focus(true);
    await settle();
    expect(model.fronts).toEqual([]);
  });
});
