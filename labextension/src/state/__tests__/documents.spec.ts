// SPDX-License-Identifier: BSD-3-Clause
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Session } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import {
  FakeModel,
  makeGroup,
  makeSession,
  makeStatus,
  trans
} from '../../__tests__/fixtures';
import type { IGroup } from '../../core/status';
import { nameGroups } from '../../words/names';
import { Documents } from '../documents';

function names(...groups: IGroup[]): string[] {
  return [
    ...nameGroups(
      groups,
      group => group.sessions,
      kernel => (kernel === 'r' ? '' : 'python'),
      trans
    ).values()
  ];
}

function used(id: string, ...paths: string[]): IGroup {
  return makeGroup(id, { sessions: paths.map(path => makeSession(path, id)) });
}

describe('nameGroups', () => {
  it('names a notebook by its file', () => {
    expect(names(used('a', 'deep/down/train.ipynb'))).toEqual(['train.ipynb']);
  });

  it('adds folders until equal file names differ', () => {
    expect(
      names(
        used('a', 'x/a/train.ipynb'),
        used('b', 'x/b/train.ipynb'),
        used('c', 'y/b/train.ipynb'),
        used('d', 'train.ipynb'),
        used('e', 'x/plots.ipynb')
      )
    ).toEqual([
      'a/train.ipynb',
      'x/b/train.ipynb',
      'y/b/train.ipynb',
      'train.ipynb',
      'plots.ipynb'
    ]);
  });

  it('escapes characters that could change the text around them', () => {
    expect(
      names(
        used('a', 'x/\u202egnp.ipynb'),
        used('b', 'y\n/\u001b]0;owned\u0007.ipynb'),
        makeGroup('c', { name: '\u009b31m\u2066', sessions: [] })
      )
    ).toEqual([
      '\\u202egnp.ipynb',
      '\\x1b]0;owned\\x07.ipynb',
      '\\x9b31m\\u2066'
    ]);
  });

  it('names a console with its language', () => {
    const console = (id: string): IGroup =>
      makeGroup(id, {
        sessions: [
          { path: `c-${id}`, name: 'Console 1', type: 'console', kernel_id: id }
        ]
      });
    expect(names(console('p'))).toEqual(['Console 1 (python)']);
    expect(names(console('r'))).toEqual(['Console 1']);
  });

  it('names all documents of a shared kernel', () => {
    const console = {
      path: 'c',
      name: 'Console 1',
      type: 'console',
      kernel_id: 'a'
    };
    const shared = used('a', 'train.ipynb');
    shared.sessions.push(console);
    expect(names(shared)).toEqual(['train.ipynb and Console 1 (python)']);
    expect(names(used('a', 'x.ipynb', 'y.ipynb', 'z.ipynb'))).toEqual([
      'x.ipynb and 2 others'
    ]);
  });

  it("uses the scheduler's name for groups of other servers", () => {
    expect(
      names(
        makeGroup('1234-5', { name: 'far/train.ipynb', sessions: [] }),
        used('b', 'near/train.ipynb'),
        makeGroup('2345-6', { name: 'python train.py', sessions: [] }),
        makeGroup('3456-7', { name: 'python train.py', sessions: [] })
      )
    ).toEqual([
      'far/train.ipynb',
      'near/train.ipynb',
      'python train.py (2345)',
      'python train.py (3456)'
    ]);
  });
});

/** A tracker with one widget in it. */
function tracker(kernel: string | null): {
  currentWidget: object | null;
  currentChanged: Signal<object, void>;
  widgetAdded: Signal<object, void>;
} {
  const owner = {};
  return {
    currentWidget:
      kernel === null
        ? null
        : { sessionContext: { session: { kernel: { id: kernel } } } },
    currentChanged: new Signal(owner),
    widgetAdded: new Signal(owner)
  };
}

describe('Documents', () => {
  const session = {
    id: 's',
    path: 'a.ipynb',
    name: 'a.ipynb',
    type: 'notebook',
    kernel: { id: 'a', name: 'python3' }
  };

  function make(
    running: object[],
    notebook: string | null,
    console: string | null,
    front?: 'notebook' | 'console'
  ): {
    documents: Documents;
    runningChanged: Signal<object, Session.IModel[]>;
  } {
    const notebooks = tracker(notebook);
    const consoles = tracker(console);
    const runningChanged = new Signal<object, Session.IModel[]>({});
    const documents = new Documents({
      model: new FakeModel(makeStatus(makeGroup('a'), makeGroup('c'))),
      sessions: {
        running: () => running.values(),
        runningChanged
      } as unknown as Session.IManager,
      kernelspecs: { specs: null },
      shell: {
        currentWidget: (front === 'console' ? consoles : notebooks)
          .currentWidget
      } as never,
      notebooks: notebooks as unknown as INotebookTracker,
      consoles: consoles as unknown as IConsoleTracker,
      trans
    });
    return { documents, runningChanged };
  }

  it('follows a rename immediately', () => {
    const running = [{ ...session }];
    const { documents, runningChanged } = make(running, null, null);
    const status = makeStatus(makeGroup('a'));
    let changes = 0;
    documents.changed.connect(() => changes++);
    const before = documents.names(status);
    expect(documents.names(status)).toBe(before);
    running[0] = { ...session, path: 'b/renamed.ipynb' };
    runningChanged.emit([]);
    expect(changes).toBe(1);
    expect(documents.names(status).get('a')).toBe('renamed.ipynb');
  });

  it("uses the server's sessions for documents that the page does not have", () => {
    const { documents } = make([], null, null);
    expect(documents.names(makeStatus(makeGroup('a'))).get('a')).toBe(
      'a.ipynb'
    );
  });

  it('returns the active document, or the last active one', () => {
    expect(make([], 'a', 'c', 'console').documents.currentGroup?.id).toBe('c');
    expect(make([], 'a', 'c', 'notebook').documents.currentGroup?.id).toBe('a');
    expect(make([], null, 'c').documents.currentGroup?.id).toBe('c');
    expect(make([], null, null).documents.currentGroup).toBeNull();
  });
});
