// SPDX-License-Identifier: BSD-3-Clause
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { waitFor } from '@testing-library/react';

import { PanelContent } from '..';
import {
  FakeModel,
  makeGroup,
  makeStatus,
  trans
} from '../../__tests__/fixtures';
import type { IDocuments } from '../../tokens';
import { GpuSharePanel } from '../sidebar';

let model: FakeModel;
let loads: number;
let fails: boolean;
let panel: GpuSharePanel;

beforeAll(() => {
  // It is JupyterLab's widget that draws, in its own time.
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: false });
});

beforeEach(() => {
  jest.spyOn(console, 'error').mockImplementation();
  model = new FakeModel(makeStatus(makeGroup('a')));
  loads = 0;
  fails = false;
  const documents: IDocuments = {
    changed: new Signal({} as IDocuments),
    currentKernel: 'a',
    currentGroup: null,
    of: group => group.sessions,
    names: () => new Map([['a', 'a.ipynb']])
  };
  panel = new GpuSharePanel({
    model,
    documents,
    commands: new CommandRegistry(),
    trans,
    load: () => {
      loads++;
      return fails
        ? Promise.reject(new Error('No connection.'))
        : Promise.resolve(PanelContent);
    }
  });
});

afterEach(() => {
  panel.dispose();
  jest.restoreAllMocks();
});

async function sees(text: string): Promise<void> {
  await waitFor(() => expect(panel.node.textContent).toContain(text));
}

describe('the panel', () => {
  it('loads and requests nothing until it is shown', async () => {
    panel.hide();
    Widget.attach(panel, document.body);
    expect(loads).toBe(0);
    expect(model.looks).toEqual([]);
    panel.show();
    expect(model.looks).toEqual([{ timeline: true }]);
    await sees('a.ipynb');
    panel.hide();
    expect(model.looks).toEqual([]);
    panel.show();
    expect(loads).toBe(1);
    expect(model.looks).toHaveLength(1);
  });

  it('stops the requests when it is closed', () => {
    Widget.attach(panel, document.body);
    expect(model.looks).toHaveLength(1);
    Widget.detach(panel);
    expect(model.looks).toEqual([]);
  });

  it('shows that it could not be loaded, and can be tried again', async () => {
    fails = true;
    Widget.attach(panel, document.body);
    await sees('The panel failed to load.');
    fails = false;
    panel.node.querySelector('button')?.click();
    await sees('a.ipynb');
  });
});
