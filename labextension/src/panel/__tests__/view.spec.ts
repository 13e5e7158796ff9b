// SPDX-License-Identifier: BSD-3-Clause
import {
  GiB,
  makeGroup,
  makeHibernated,
  makeStatus,
  makeWaiting,
  makeWaking,
  makePreferences,
  plain,
  trans
} from '../../__tests__/fixtures';
import { noticesOf } from '../../core/notices';
import { turnPercent } from '../../core/queue';
import { firstRows, makeSections } from '../../core/sections';
import { makeShares, restsSince } from '../../core/shares';
import type { IGpu, IGroup, IStatus } from '../../core/status';
import { announce } from '../../words/announcements';
import { explain } from '../../words/availability';
import { detailText } from '../../words/details';
import { noticeText } from '../../words/notices';
import { modeText } from '../../words/settings';
import type { IWording } from '../../words/short';
import { linkText } from '../../words/short';
import type { IGpuView } from '../memory';
import { makeGpu } from '../memory';

function wordingOf(groups: IGroup[]): IWording {
  return {
    trans,
    units: 'binary',
    names: new Map(groups.map(({ id, name }) => [id, name]))
  };
}

function gpuOf(status: IStatus, index = 0): IGpuView {
  const colours = new Map(
    status.groups.map((group, index) => [group.id, index])
  );
  const gpu = status.gpus[index];
  if (!gpu) {
    throw new Error(`There is no GPU ${index}.`);
  }
  return makeGpu(
    gpu,
    makeShares(status.groups).get(gpu.uuid) ?? [],
    status.host,
    colours,
    wordingOf(status.groups)
  );
}

const cell = { msg_id: 'm', since: 88, waited: 0, ran: 9 };

describe('makeSections', () => {
  it('sorts the groups into sections', () => {
    const { running, waiting, idle } = makeSections([
      makeGroup('runs', { state: 'running' }),
      makeGroup('keeps', { state: 'idle_lease' }),
      makeGroup('thinks', { state: 'idle_lease', cell }),
      makeGroup('arrives', { state: 'restoring' }),
      makeGroup('ends', { state: 'finishing' }),
      makeGroup('prepares', { state: 'prefetching', since: 15 }),
      makeGroup('sleeps', { since: 20 }),
      makeHibernated('hibernates', { since: 10 }),
      makeWaiting('second', 2),
      makeWaiting('first', 1),
      makeWaking('wakes')
    ]);
    const ids = (groups: IGroup[]): string[] => groups.map(({ id }) => id);
    expect(ids(running)).toEqual(['runs', 'arrives', 'ends']);
    expect(ids(waiting)).toEqual(['wakes', 'first', 'second']);
    expect(ids(idle)).toEqual([
      'keeps',
      'thinks',
      'sleeps',
      'prepares',
      'hibernates'
    ]);
  });

  it('shows the first of many rows, and that of the active notebook', () => {
    const groups = Array.from({ length: 40 }, (_, i) => makeGroup(`${i}`));
    const ids = firstRows(groups, 3, '30').map(({ id }) => id);
    expect(ids).toEqual(['0', '1', '2', '30']);
    // To hide a single one saves no room.
    expect(firstRows(groups.slice(0, 4), 3, null)).toHaveLength(4);
  });
});

describe('makeShares', () => {
  it('keeps the same arrays where the memory has not changed', () => {
    const group = (id: string, uuid: string, resident: number): IGroup =>
      makeGroup(id, {
        gpus: [
          {
            uuid,
            resident,
            footprint: GiB,
            swapped: 0,
            unevictable: 0,
            context: 0
          }
        ]
      });
    const before = makeShares([group('a', 'x', GiB), group('b', 'y', GiB)]);
    const after = makeShares(
      [group('a', 'x', GiB), group('b', 'y', 0)],
      before
    );
    expect(after.get('x')).toBe(before.get('x'));
    expect(after.get('y')).not.toBe(before.get('y'));
    expect(after.get('y')?.[0]?.resident).toBe(0);
  });
});

describe('makeGpu', () => {
  it('draws the memory bar from notebooks and other memory', () => {
    const gpu = gpuOf(makeStatus(makeGroup('a')));
    expect(
      gpu.segments.map(({ part, colour, percent }) => [part, colour, percent])
    ).toEqual([
      ['resident', 0, 20],
      ['unevictable', 0, 5],
      ['contexts', null, 5],
      ['foreign', null, 10]
    ]);
    expect(gpu.used).toBe('15 of 20\u00a0GiB');
    expect(gpu.segments.map(({ title }) => plain(title))).toEqual([
      'a.ipynb: 4 GiB',
      'a.ipynb, unevictable: 1 GiB',
      'CUDA contexts: 1 GiB',
      'other programs: 2 GiB'
    ]);
    expect(plain(gpu.free?.title ?? '')).toBe('free: 5 GiB');
  });

  it('shows no less memory in use than its bar', () => {
    const status = makeStatus(makeGroup('a'));
    const [gpu] = status.gpus;
    expect(gpuOf({ ...status, gpus: [{ ...gpu!, used: 0 }] }).used).toBe(
      '8 of 20\u00a0GiB'
    );
  });

  it('shows only the host memory of a hibernated notebook', () => {
    const gpu = gpuOf(makeStatus(makeHibernated('a')));
    expect(gpu.segments.map(({ part }) => part)).toEqual([
      'contexts',
      'foreign'
    ]);
    expect(gpu.host).toMatchObject([{ part: 'swapped', percent: 9.375 }]);
  });

  it('shows host memory in proportion to the budget', () => {
    const gpu = gpuOf(makeStatus(makeGroup('a')));
    expect(gpu.host).toMatchObject([
      { part: 'swapped', colour: 0, percent: 3.125 }
    ]);
    expect(plain(gpu.hostText)).toBe('2 GiB in host memory');
  });

  it('shows how much host memory is prepared', () => {
    const status = makeStatus(makeGroup('a'));
    status.host = {
      budget: 64 * GiB,
      swapped: 2 * GiB,
      promised: 6 * GiB,
      pool: { in_use: 2 * GiB, prepared: 3 * GiB }
    };
    expect(plain(gpuOf(status).hostText)).toBe(
      '2 GiB in host memory, 1 GiB more prepared'
    );
  });

  it('counts only the memory on that GPU', () => {
    const share = {
      footprint: GiB,
      resident: GiB,
      swapped: 0,
      unevictable: 0,
      context: 0
    };
    const status = makeStatus(
      makeGroup('both', {
        gpus: [
          { ...share, uuid: 'GPU-0', resident: 2 * GiB },
          { ...share, uuid: 'GPU-1', resident: 4 * GiB }
        ]
      })
    );
    const first = status.gpus[0];
    if (first) {
      status.gpus.push({ ...first, uuid: 'GPU-1', index: 1 });
    }
    expect(gpuOf(status, 0).segments[0]).toMatchObject({ percent: 10 });
    expect(gpuOf(status, 1).segments[0]).toMatchObject({ percent: 20 });
  });

  it('sums up the smallest of many notebooks', () => {
    const groups = Array.from({ length: 40 }, (_, index) =>
      makeGroup(`${index}`, {
        gpus: [
          {
            uuid: 'GPU-0',
            footprint: 0,
            resident: index === 0 ? 8 * GiB : GiB / 8,
            swapped: 0,
            unevictable: 0,
            context: 0
          }
        ]
      })
    );
    const { segments } = gpuOf(makeStatus(...groups));
    const own = segments.filter(({ part }) =>
      ['resident', 'others'].includes(part)
    );
    expect(own.map(({ part }) => part)).toEqual(['resident', 'others']);
    expect(own[1]?.percent).toBeCloseTo((100 * 39) / 8 / 20);
    expect(plain(own[1]?.title ?? '')).toBe('39 small notebooks: 4.88 GiB');
  });
});

describe('restsSince', () => {
  const [gpu] = makeStatus().gpus;
  if (!gpu) {
    throw new Error('There is no GPU.');
  }
  const quiet = { ...gpu, utilization: 0 };

  it.each<[string, number, Partial<IGpu>, IGroup[]]>([
    ['nobody is there', -Infinity, {}, []],
    ['NVML does not say how busy it is', -Infinity, { utilization: null }, []],
    ['another program works there', Infinity, { utilization: 1 }, []],
    ['it is being emptied', Infinity, { draining: true }, []],
    ['one runs', Infinity, {}, [makeGroup('a', { state: 'running' })]],
    ['one waits', Infinity, {}, [makeGroup('b'), makeWaiting('a', 1)]],
    [
      'all are idle',
      95,
      {},
      [
        makeGroup('a', { since: 20 }),
        makeGroup('b', { since: 95, state: 'idle_lease' })
      ]
    ],
    [
      'one runs elsewhere',
      -Infinity,
      {},
      [makeGroup('a', { state: 'running', gpus: [] })]
    ]
  ])('is right when %s', (_, expected, changes, groups) => {
    expect(restsSince({ ...quiet, ...changes }, groups)).toBe(expected);
  });
});

describe('noticesOf', () => {
  it.each([
    [64, 64, 1],
    [63.5, 64, 1],
    [60, 64, 0],
    [0, 0, 1]
  ])('of a host with %s of %s GiB in use', (swapped, budget, count) => {
    const host = { swapped: swapped * GiB, budget: budget * GiB, promised: 0 };
    const notices = noticesOf({ ...makeStatus(), host });
    expect(notices.map(({ code }) => code)).toEqual(
      Array(count).fill('host_full')
    );
    for (const notice of notices) {
      expect(plain(noticeText('', notice, trans))).toMatch(
        /^Host memory is full: evicted data takes .* of .*\./
      );
    }
  });

  it('reports why no more data goes to the disk', () => {
    const host = {
      ...{ swapped: 0, budget: GiB, promised: 0 },
      disk_tier: { fault: 'No space left on device' }
    };
    const [notice] = noticesOf({ ...makeStatus(), host });
    expect(notice !== undefined && noticeText('', notice, trans)).toBe(
      'No more data goes to the disk: No space left on device. No data is lost.'
    );
    const well = { ...host, disk_tier: { fault: '' } };
    expect(noticesOf({ ...makeStatus(), host: well })).toEqual([]);
  });

  it('has no notice without GPUs, or about an unknown host', () => {
    const host = { swapped: 0, budget: 0, promised: 0 };
    expect(noticesOf({ ...makeStatus(), gpus: [], host })).toEqual([]);
    expect(noticesOf({ ...makeStatus(), host: null })).toEqual([]);
  });
});

describe('detailText', () => {
  it.each<[string, IGroup, string]>([
    [
      'one that runs and has to yield',
      makeGroup('a', { state: 'running', cell, yields_in: 5 }),
      'turn ends within 3 s'
    ],
    [
      'one that is hibernated',
      makeHibernated('a'),
      'hibernated for 12 s · wakes in about 1.2 s'
    ],
    [
      'one that wakes',
      makeWaking('a'),
      'longer than expected · waking up from hibernation'
    ],
    [
      'one that wakes and lacks room',
      makeWaking('a', {
        reason: { code: 'making_room', params: { lack: GiB } }
      }),
      'making room by evicting 1 GiB'
    ],
    [
      'one that waits',
      makeWaiting('a', 1),
      'about 2 s · needs 15 GiB more; train has the GPU'
    ],
    [
      'one with an idle lease',
      makeGroup('a', { state: 'idle_lease' }),
      'idle lease for 12 s · 5 GiB on the GPU, 2 GiB in host memory'
    ],
    [
      'one with an idle lease in the middle of a cell',
      makeGroup('a', { state: 'idle_lease', cell }),
      'cell running for 14 s · idle lease · 5 GiB on the GPU, 2 GiB in host memory'
    ],
    [
      'one whose memory arrives',
      makeGroup('a', {
        state: 'restoring',
        reason: {
          code: 'filling',
          params: { arrived: GiB, footprint: 2 * GiB, victims: ['b.ipynb'] }
        }
      }),
      'restoring its memory while evicting b: 1 GiB of 2 GiB'
    ],
    [
      'one that is idle',
      makeGroup('a'),
      'idle for 12 s · 5 GiB on the GPU, 2 GiB in host memory'
    ]
  ])('describes %s', (_, group, expected) => {
    expect(plain(detailText(group, wordingOf([]), 102))).toBe(expected);
  });
});

describe('turnPercent', () => {
  const settings = {
    quantum: 10,
    anti_thrash: 'auto' as const,
    policy: 'fcfs'
  };
  const group = makeGroup('a', { state: 'running', since: 97, yields_in: 5 });

  it('uses the time slice that was set', () => {
    expect(turnPercent(group, settings, 102)).toBe(70);
    expect(turnPercent(group, settings, 200)).toBe(100);
  });

  it('uses the start of the turn if the scheduler chooses the time slice', () => {
    // 5 s had, 3 s left.
    expect(turnPercent(group, { ...settings, quantum: 'auto' }, 102)).toBe(63);
  });

  it('is null while no notebook is waiting', () => {
    expect(
      turnPercent({ ...group, yields_in: null }, settings, 102)
    ).toBeNull();
  });
});

describe('explain', () => {
  it('always has a text for an empty panel', () => {
    expect(explain(makeStatus(), trans)?.title).toBe(
      'No notebook is using the GPU yet'
    );
    expect(explain({ ...makeStatus(), gpus: [] }, trans)?.title).toBe(
      'No GPU was found'
    );
    expect(explain(makeStatus(makeGroup('a')), trans)).toBeNull();
  });

  it('prefers the reason why nothing is shared', () => {
    const availability = { code: 'no_driver', params: {} };
    const status = { ...makeStatus(), gpus: [], availability };
    expect(explain(status, trans)?.title).toBe('No NVIDIA driver was found');
  });
});

describe('words', () => {
  it('names the mode, a time slice that was set, and a policy other than the default', () => {
    const settings = {
      quantum: 'auto' as const,
      anti_thrash: 'auto' as const,
      policy: 'burst'
    };
    expect(modeText(settings, trans)).toBe('automatic');
    expect(
      plain(modeText({ ...settings, anti_thrash: 'on', quantum: 5 }, trans))
    ).toBe('one at a time · 5 s');
    expect(modeText({ ...settings, policy: 'fcfs' }, trans)).toBe(
      'automatic · policy fcfs'
    );
  });

  it.each([
    ['ok', 'live'],
    ['starting', 'starting'],
    ['server_unreachable', 'connection lost'],
    ['disabled', 'not shared']
  ])('words the state %s', (code, expected) => {
    expect(linkText({ code, params: {} }, trans).text).toBe(expected);
  });

  it('announces a state without times', () => {
    const waiting = makeWaiting('a', 2);
    expect(announce(waiting, 'a', trans)).toBe(
      'a is waiting for the GPU, position 2'
    );
    const frozen = makeGroup('a', {
      preferences: makePreferences({ frozen: true })
    });
    expect(announce(frozen, 'a', trans)).toBe('a is not using the GPU');
  });
});
