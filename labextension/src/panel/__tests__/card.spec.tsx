// SPDX-License-Identifier: BSD-3-Clause
import { fireEvent, screen, within } from '@testing-library/react';

import {
  GiB,
  makeGroup,
  makeHibernated,
  makeSession,
  makeSleep,
  makeStatus,
  makeWaiting,
  makeWaking,
  makePreferences,
  makePrefetch
} from '../../__tests__/fixtures';
import type { IGroup } from '../../core/status';
import { CommandIds } from '../../tokens';
import { running, setUp, textOf, violations } from './panel';

beforeAll(() => {
  // axe asks whether letters are pictures; here there are no pictures at all.
  HTMLCanvasElement.prototype.getContext = () => null;
});

function card(): HTMLElement {
  return screen.getByRole('region', { name: 'This notebook' });
}

/** The lines of the card, and its buttons other than the menu's. */
function linesOf(): string[] {
  return [...card().querySelectorAll('p, button:not([aria-haspopup])')].map(
    textOf
  );
}

const others = [makeWaiting('other', 1), running];

describe('the card of the active notebook', () => {
  it.each<[string, IGroup, string[]]>([
    [
      'waits',
      makeWaiting('a', 2),
      [
        'Waiting, 2nd · about 4 s',
        'needs 15 GiB more; train has the GPU',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Go to train',
        'Let others go first'
      ]
    ],
    [
      'waits without an estimate',
      makeWaiting('a', 2, { estimate: null }),
      [
        'Waiting, 2nd',
        "needs 15 GiB more; train's turn ends within 3 s",
        '5 GiB on the GPU · 2 GiB in host memory',
        'Go to train',
        'Let others go first'
      ]
    ],
    [
      'runs, and others wait',
      makeGroup('a', { state: 'running', since: 88, yields_in: 5 }),
      [
        'Running · turn ends within 5 s',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Release',
        'Let others go first'
      ]
    ],
    [
      'runs, and more cells follow',
      makeGroup('a', { state: 'running', since: 88, queued: 20 }),
      [
        'Running for 12 s',
        '20 more cells are queued',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Release',
        'Let others go first'
      ]
    ],
    [
      'waits with its last cells',
      makeWaiting('a', 2, { queued: 1 }),
      [
        'Waiting, 2nd · about 4 s',
        'needs 15 GiB more; train has the GPU',
        '1 more cell is queued',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Go to train',
        'Let others go first'
      ]
    ],
    [
      'runs with low priority, and no notebook waits',
      makeGroup('a', { state: 'running', since: 88, class: 'background' }),
      [
        'Running for 12 s',
        '5 GiB on the GPU · 2 GiB in host memory low priority',
        'Release',
        'Make interactive'
      ]
    ],
    [
      'is idle',
      makeGroup('a'),
      [
        'Idle for 10 s',
        'keeps 5 GiB on the GPU · 2 GiB in host memory',
        'Evict memory',
        'Hibernate now'
      ]
    ],
    [
      'has just become idle',
      makeGroup('a', { since: 99.2 }),
      [
        'Idle',
        'keeps 5 GiB on the GPU · 2 GiB in host memory',
        'Evict memory',
        'Hibernate now'
      ]
    ],
    [
      'is idle, and can get ready',
      makeGroup('a', { prefetch: null }),
      [
        'Idle for 10 s',
        'keeps 5 GiB on the GPU · 2 GiB in host memory',
        'Get ready',
        'Evict memory'
      ]
    ],
    [
      'is getting ready',
      makeGroup('a', { state: 'prefetching', prefetch: makePrefetch() }),
      [
        'Getting ready',
        'Its user is typing in it. In 80% of cases, GPU work follows within a minute.',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Evict memory',
        'Hibernate now'
      ]
    ],
    [
      'is ready',
      makeGroup('a', {
        state: 'idle_lease',
        prefetch: makePrefetch({ hint: 'ready', stage: 'ready' })
      }),
      [
        'Ready',
        'Its user asked to get it ready.',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Release',
        'Let others go first'
      ]
    ],
    [
      'has an idle lease',
      makeGroup('a', { state: 'idle_lease' }),
      [
        'Idle lease',
        'It can use the GPU again without waiting.',
        '5 GiB on the GPU · 2 GiB in host memory',
        'Release',
        'Let others go first'
      ]
    ],
    [
      'is hibernated',
      makeHibernated('a'),
      [
        'Hibernated',
        'freed 719 MiB of GPU memory · wakes in about 1.2 s',
        'Wake'
      ]
    ],
    [
      'wakes',
      makeWaking('a'),
      ['Waking up · about 0.7 s', '6 GiB in host memory', 'Let others go first']
    ],
    [
      'is to hibernate once it is idle',
      makeGroup('a', {
        cell: { msg_id: 'm', since: 90, waited: 0, ran: 0 },
        hibernation: makeSleep({ state: 'ordered' })
      }),
      [
        'Cell running, not using the GPU',
        'keeps 5 GiB on the GPU · 2 GiB in host memory hibernates when idle',
        'Cancel Hibernation',
        'Evict memory'
      ]
    ],
    [
      'is frozen',
      makeWaiting('a', 2, {
        preferences: makePreferences({ frozen: true, keep: true })
      }),
      [
        'Frozen',
        'It cannot use the GPU until you unfreeze it.',
        '5 GiB on the GPU · 2 GiB in host memory kept on the GPU',
        'Unfreeze'
      ]
    ],
    [
      'is on hold',
      makeWaiting('a', 2, { preferences: makePreferences({ on_hold: true }) }),
      [
        'On hold',
        'Only an administrator can resume it.',
        '5 GiB on the GPU · 2 GiB in host memory'
      ]
    ],
    [
      'is being restored',
      makeGroup('a', {
        state: 'restoring',
        reason: {
          code: 'filling',
          params: { arrived: GiB, footprint: 2 * GiB, victims: [] }
        },
        gpus: []
      }),
      [
        'Restoring',
        'restoring its memory: 1 GiB of 2 GiB',
        'nothing on the GPU',
        'Release',
        'Let others go first'
      ]
    ],
    [
      'finishes',
      makeGroup('a', { state: 'finishing', gpus: [] }),
      [
        'Finishing its queued GPU work',
        'nothing on the GPU',
        'Let others go first'
      ]
    ]
  ])('shows the state when it %s', async (_, group, lines) => {
    const status = makeStatus(group, ...others);
    const { commands, container, report } = setUp(status, 'a');
    commands.isStrict = true;
    report({ ...status });
    expect(linesOf()).toEqual(lines);
    expect(await violations(container)).toEqual([]);
  });

  it('shows an unknown state of a newer scheduler as it is', () => {
    setUp(makeStatus(makeGroup('a', { state: 'dancing' as 'idle' })), 'a');
    expect(linesOf()[0]).toBe('dancing');
  });

  it('runs the actions of its buttons, and has the others in a menu', () => {
    const { commands } = setUp(makeStatus(makeWaiting('a', 2), running), 'a');
    fireEvent.click(within(card()).getByText('Go to train'));
    fireEvent.click(within(card()).getByText('Let others go first'));
    expect(commands.executed).toEqual([
      [CommandIds.goTo, { group: 'train' }],
      [CommandIds.setPriority, { group: 'a', priority: 'background' }]
    ]);
    fireEvent.click(within(card()).getByLabelText('More actions'));
    expect(screen.getAllByRole('menuitem').length).toBeGreaterThan(5);
    fireEvent.keyDown(screen.getByRole('menu'), { keyCode: 27 });
  });

  it('explains once why it does not share', () => {
    const unshared = {
      kernel_id: 'a',
      code: 'started_before',
      params: {},
      sessions: [makeSession('a.ipynb', 'a')]
    };
    setUp({ ...makeStatus(running), unshared: [unshared] }, 'a');
    expect(linesOf()).toEqual([
      'This notebook is not sharing the GPU',
      'This kernel was started before GPU sharing was enabled. Restart the kernel.'
    ]);
    expect(screen.queryByRole('region', { name: /Not sharing/ })).toBeNull();
  });

  it('shows that the notebook has not used the GPU', () => {
    const { bringToFront } = setUp(makeStatus(running), 'a');
    expect(linesOf()).toEqual(['This notebook has not used the GPU yet.']);
    bringToFront(null);
    expect(screen.queryByRole('region', { name: 'This notebook' })).toBeNull();
  });
});
