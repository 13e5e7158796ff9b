// SPDX-License-Identifier: BSD-3-Clause
import { MainAreaWidget } from '@jupyterlab/apputils';
import { Toolbar } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import { Panel, Widget } from '@lumino/widgets';
import { fireEvent, screen, waitFor, within } from '@testing-library/react';

import { FakeCommands } from '../../__tests__/commands';
import {
  FakeModel,
  makeGroup,
  makeSpan,
  makeStatus,
  makeTimeline,
  trans
} from '../../__tests__/fixtures';
import type { IStatus } from '../../core/status';
import type { IDocuments } from '../../tokens';
import { CommandIds } from '../../tokens';
import { fill } from '../view';

let main: MainAreaWidget<Panel>;
let model: FakeModel;
let commands: FakeCommands;
let chosen: number[];

beforeAll(() => {
  // JupyterLab's widget renders asynchronously.
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: false });
});

beforeEach(() => {
  model = new FakeModel();
  commands = new FakeCommands(model);
  chosen = [];
  const documents: IDocuments = {
    changed: new Signal({} as IDocuments),
    currentKernel: null,
    currentGroup: null,
    of: group => group.sessions,
    names: () => new Map([['plots', 'plots.ipynb']])
  };
  main = new MainAreaWidget({
    content: new Panel(),
    // The usual one measures itself later, when the test may be over.
    toolbar: new Toolbar()
  });
  fill(main, {
    model,
    documents,
    commands,
    trans,
    minutes: 30,
    onMinutes: minutes => chosen.push(minutes)
  });
  Widget.attach(main, document.body);
});

afterEach(() => main.dispose());

function withTimeline(): IStatus {
  return {
    ...makeStatus(makeGroup('plots')),
    timeline: makeTimeline(makeSpan(1, 'plots'), makeSpan(2, 'gone'))
  };
}

/** The text of the view. */
function text(): string | null {
  return main.content.node.textContent;
}

describe('The timeline in the main area', () => {
  it('shows the events of all notebooks, including closed ones', async () => {
    await waitFor(() => expect(text()).toBe('Loading…'));
    model.status = withTimeline();
    const heading = await screen.findByRole('heading');
    expect(heading.textContent).toBe('Last 30 minutes');
    const lanes = main.node.querySelector<HTMLElement>('.jp-GpuShare-lanes');
    expect(lanes?.textContent).toBe('gone' + 'plots');
    const colours = [...main.node.querySelectorAll('g')].map(
      ({ dataset }) => dataset['colour']
    );
    // The panel takes its colours from the model, too.
    expect(colours).toEqual(
      ['gone', 'plots'].map(id => String(model.colours.get(id)))
    );
    expect(new Set(colours).size).toBe(2);
  });

  it('explains why there is none', async () => {
    model.status = {
      ...makeStatus(),
      availability: { code: 'no_driver', params: {} }
    };
    await waitFor(() => expect(text()).toContain('No NVIDIA driver'));
  });

  it('requests the chosen length while it is visible', async () => {
    expect(model.looks).toEqual([{ timeline: true, minutes: 30 }]);
    model.status = withTimeline();
    const select = await within(main.toolbar.node).findByRole('combobox');
    fireEvent.change(select, { target: { value: '5' } });
    expect(chosen).toEqual([5]);
    expect(model.looks).toEqual([{ timeline: true, minutes: 5 }]);
    await waitFor(() =>
      expect(screen.getByRole('heading').textContent).toBe('Last 5 minutes')
    );
    main.hide();
    expect(model.looks).toEqual([]);
    main.show();
    expect(model.looks).toHaveLength(1);
    main.dispose();
    expect(model.looks).toEqual([]);
  });

  it('opens the panel', async () => {
    const button = await waitFor(() => {
      const found =
        main.toolbar.node.querySelector<HTMLElement>('[data-command]');
      expect(found).not.toBeNull();
      return found;
    });
    button?.click();
    await waitFor(() =>
      expect(commands.executed.map(([id]) => id)).toEqual([
        CommandIds.openPanel
      ])
    );
  });
});
