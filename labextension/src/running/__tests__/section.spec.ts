// SPDX-License-Identifier: BSD-3-Clause
import { Signal } from '@lumino/signaling';

import { FakeCommands } from '../../__tests__/commands';
import {
  FakeModel,
  makeGroup,
  makeHibernated,
  makeStatus,
  makeWaiting,
  makePreferences,
  plain,
  trans
} from '../../__tests__/fixtures';
import type { IGroup } from '../../core/status';
import type { IDocuments } from '../../tokens';
import { CommandIds } from '../../tokens';
import { GpuSection } from '../section';

let model: FakeModel;
let commands: FakeCommands;
let section: GpuSection;
let stopped: string[];
let changes: number;

beforeEach(() => {
  model = new FakeModel();
  commands = new FakeCommands(model);
  stopped = [];
  changes = 0;
  const documents: IDocuments = {
    changed: new Signal({} as IDocuments),
    currentKernel: null,
    currentGroup: null,
    of: group => group.sessions,
    names: () => new Map([['plots', 'deep/plots.ipynb']])
  };
  section = new GpuSection({
    model,
    documents,
    kernels: {
      shutdown: id => {
        stopped.push(id);
        return Promise.resolve();
      }
    },
    commands,
    trans
  });
  section.runningChanged.connect(() => changes++);
});

afterEach(() => section.dispose());

/** What the list shows: names and details. */
function shown(...groups: IGroup[]): (string | undefined)[][] {
  model.status = makeStatus(...groups);
  return section
    .running()
    .map(({ label, detail }) => [label() as string, detail && plain(detail())]);
}

describe('The section of the running kernels', () => {
  it('is empty before the first status', () => {
    expect(section.name).toBe('GPU sharing');
    expect(section.running()).toEqual([]);
  });

  it('shows state and memory of each kernel of this server, by name', () => {
    expect(
      shown(
        makeWaiting('train', 2),
        makeGroup('elsewhere', { sessions: [] }),
        makeGroup('plots', { state: 'running' }),
        makeGroup('calm', { preferences: makePreferences({ frozen: true }) }),
        makeHibernated('asleep')
      )
    ).toEqual([
      ['asleep', 'hibernated'],
      ['calm', 'frozen · 5 GiB'],
      ['deep/plots', 'running · 5 GiB'],
      ['train', 'waiting, 2nd · 5 GiB']
    ]);
    const [, , plots] = section.running();
    expect(plots?.labelTitle?.()).toContain('deep/plots.ipynb\n');
    expect(plain(plots?.labelTitle?.() ?? '')).toContain(
      '2 GiB in host memory'
    );
  });

  it('opens the document, and shuts kernels down', () => {
    const two = makeGroup('two', {
      sessions: ['two', 'two', 'other'].map(kernel_id => ({
        path: 'two.ipynb',
        name: 'two.ipynb',
        type: 'notebook',
        kernel_id
      }))
    });
    shown(makeGroup('plots'), two);
    const [plots] = section.running();
    plots?.open?.();
    expect(commands.executed).toEqual([[CommandIds.goTo, { group: 'plots' }]]);
    plots?.shutdown?.();
    expect(stopped).toEqual(['plots']);
    stopped = [];
    section.shutdownAll();
    expect(stopped).toEqual(['plots', 'two', 'other']);
  });

  it('notifies JupyterLab only of changes that the list shows', () => {
    shown(makeGroup('plots'));
    expect(changes).toBe(1);
    shown(makeGroup('plots', { at: 104, since: 80 }));
    section.refreshRunning();
    expect(changes).toBe(1);
    shown(makeGroup('plots', { state: 'running' }));
    expect(changes).toBe(2);
    shown();
    expect(changes).toBe(3);
    section.dispose();
    shown(makeGroup('plots'));
    expect(changes).toBe(3);
  });
});
