// SPDX-License-Identifier: BSD-3-Clause
import {
  GiB,
  makeGroup,
  makeHibernated,
  makePreferences,
  makePrefetch,
  makeWaiting,
  makeWaking
} from '../../__tests__/fixtures';
import type { IGroup } from '../../core/status';
import type { Hint } from '../../tokens';
import type { Place } from '../returns';
import { PAUSE, placeOf, Returns } from '../returns';

let returns: Returns;

beforeEach(() => {
  returns = new Returns();
});

/** Note signs, each with its time in seconds; return the hints that they give. */
function hintsOf(
  ...signs: [Hint, Place, number, kernel?: string, uses?: number][]
): string[] {
  return signs
    .filter(([kind, place, time, kernel = 'a', uses = 7]) =>
      returns.sign(kernel, kind, place, uses, 1000 * time)
    )
    .map(([kind, , time]) => `${kind} at ${time}`);
}

describe('a return', () => {
  it('gives each kind of hint once, and the stronger one last', () => {
    expect(
      hintsOf(
        ['focus', 'away', 0],
        ['typing', 'away', 2],
        ['focus', 'away', 5],
        ...Array.from({ length: 50 }, (_, index): [Hint, Place, number] => [
          'typing',
          'away',
          6 + index
        ])
      )
    ).toEqual(['focus at 0', 'typing at 2']);
    // A user who types from the beginning has said everything with the first key.
    expect(
      hintsOf(['typing', 'away', 0, 'b'], ['focus', 'away', 1, 'b'])
    ).toEqual(['typing at 0']);
  });

  it('begins after a pause', () => {
    const pause = PAUSE / 1000;
    expect(
      hintsOf(
        ['typing', 'away', 0],
        ['typing', 'away', pause - 1],
        ['typing', 'away', 2 * pause - 2],
        ['typing', 'away', 3 * pause - 2],
        ['typing', 'away', 3 * pause - 1]
      )
    ).toEqual(['typing at 0', `typing at ${3 * pause - 2}`]);
  });

  it('is one to one notebook', () => {
    expect(
      hintsOf(
        ['focus', 'away', 0, 'a'],
        ['focus', 'away', 1, 'b'],
        ['focus', 'away', 2, 'a'],
        ['focus', 'away', 3, 'b']
      )
    ).toEqual(['focus at 0', 'focus at 1']);
  });

  it('gives no hint while the memory is on the GPU, and one once it is not', () => {
    expect(
      hintsOf(
        ['focus', 'here', 0],
        ['typing', 'here', 1],
        ['typing', 'here', 20],
        ['typing', 'away', 21],
        ['typing', 'away', 22]
      )
    ).toEqual(['typing at 21']);
  });

  it('gives hints while it is unknown where the memory is', () => {
    expect(
      hintsOf(
        ['focus', 'unknown', 0],
        ['typing', 'unknown', 1],
        ['typing', 'away', 2]
      )
    ).toEqual(['focus at 0', 'typing at 1']);
  });

  it('begins when the memory has been used and was evicted', () => {
    expect(
      hintsOf(
        ['typing', 'away', 0, 'a', 7],
        ['typing', 'here', 1, 'a', 8],
        ['typing', 'away', 2, 'a', 8],
        ['typing', 'away', 3, 'a', 8]
      )
    ).toEqual(['typing at 0', 'typing at 2']);
  });

  it('begins when the memory has been on the GPU in vain and was evicted, but not again at once', () => {
    const typing = (from: number, to: number): string[] => {
      const times = Array.from({ length: to - from }, (_, i) => from + i);
      return hintsOf(
        ...times.map((time): [Hint, Place, number] => ['typing', 'away', time])
      );
    };
    expect(typing(0, 5)).toEqual(['typing at 0']);
    returns.see('a', 'unknown');
    returns.see('a', 'away');
    expect(typing(5, 35)).toEqual([]);
    returns.see('a', 'here');
    expect(typing(35, 60)).toEqual(['typing at 35']);
    // Memory that comes and goes must not cause a message each time.
    returns.see('a', 'here');
    expect(typing(60, 70)).toEqual(['typing at 65']);
  });
});

describe('placeOf', () => {
  const [share] = makeGroup('a').gpus;
  const gpus = share ? [{ ...share, resident: 6 * GiB, swapped: 0 }] : [];

  it.each<[string, IGroup | null, Place]>([
    ['has not used the GPU', null, 'here'],
    ['is all on the GPU', makeGroup('a', { gpus }), 'here'],
    ['is partly in host memory', makeGroup('a'), 'away'],
    [
      'is partly in host memory, with an idle lease',
      makeGroup('a', { state: 'idle_lease' }),
      'away'
    ],
    ['is hibernated', makeHibernated('a', { gpus: [] }), 'away'],
    ['is waking', makeWaking('a'), 'here'],
    ['is waiting', makeWaiting('a', 1), 'here'],
    ['is running', makeGroup('a', { state: 'running' }), 'here'],
    [
      'is getting ready',
      makeGroup('a', { state: 'prefetching', prefetch: makePrefetch() }),
      'here'
    ],
    [
      'is getting ready, and others are evicted first',
      makeGroup('a', { prefetch: makePrefetch({ stage: 'evicting' }) }),
      'here'
    ],
    [
      'is frozen',
      makeGroup('a', { preferences: makePreferences({ frozen: true }) }),
      'here'
    ],
    [
      'is on hold',
      makeGroup('a', { preferences: makePreferences({ on_hold: true }) }),
      'here'
    ]
  ])('of a notebook that %s', (_, group, place) => {
    expect(placeOf(group)).toBe(place);
  });
});
