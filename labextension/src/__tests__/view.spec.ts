// SPDX-License-Identifier: BSD-3-Clause
import type { IView } from '../view';
import { makeView } from '../view';
import type { IStatus } from '../status';
import { makeGroup, makeStatus, trans } from './fixtures';

const GiB = 2 ** 30;

function view(
  status: IStatus,
  elapsed = 0,
  kernelId: string | null = null
): IView {
  const colours = new Map(
    status.groups.map((group, index) => [group.id, index] as const)
  );
  return makeView(status, { trans, colours, kernelId, elapsed });
}

describe('makeView', () => {
  it('puts each group into the section that people expect', () => {
    const cell = { msg_id: 'm', since: 95 };
    const result = view(
      makeStatus(
        makeGroup('runs', { state: 'running' }),
        makeGroup('keeps', { state: 'held' }),
        makeGroup('thinks', { state: 'held', cell }),
        makeGroup('arrives', { state: 'moving' }),
        makeGroup('sleeps')
      )
    );
    expect(result.running.map(row => row.id)).toEqual([
      'runs',
      'thinks',
      'arrives'
    ]);
    expect(result.idle.map(row => row.id)).toEqual(['keeps', 'sleeps']);
    expect(result.waiting).toEqual([]);
    expect(result.explanation).toBeNull();
  });

  it('orders the queue by position and lets the waits grow', () => {
    const wait = (position: number): object => ({
      state: 'waiting',
      since: 98,
      position,
      estimate: 9,
      reason: { code: 'behind', params: { ahead_name: 'x.ipynb' } }
    });
    const result = view(
      makeStatus(makeGroup('b', wait(2)), makeGroup('a', wait(1))),
      5
    );
    expect(result.waiting.map(row => row.position)).toEqual([1, 2]);
    expect(result.waiting[0]).toMatchObject({
      detail: 'after x',
      figure: '7\u00a0s',
      outlook: 'its turn in about 4 s'
    });
  });

  it('says what a running notebook does and when it yields', () => {
    const group = makeGroup('a', {
      state: 'running',
      cell: { msg_id: 'm', since: 88 },
      yields_in: 5
    });
    expect(view(makeStatus(group), 2).running[0]).toMatchObject({
      detail: 'cell for 14 s · yields in 3 s',
      figure: '7\u00a0GiB'
    });
  });

  it('draws the memory bar from the notebooks and what is not theirs', () => {
    const [gpu] = view(makeStatus(makeGroup('a'))).gpus;
    expect(
      gpu?.segments.map(({ colour, percent }) => [colour, percent])
    ).toEqual([
      [0, 25],
      ['contexts', 5],
      ['foreign', 10]
    ]);
    expect(gpu?.used).toBe('15 of 20 GiB in use');
    expect(gpu?.host).toBe('2 GiB in host memory');
    expect(gpu?.legend.map(({ text }) => text)).toEqual([
      'CUDA contexts 1 GiB',
      'other programs 2 GiB'
    ]);
  });

  it('says how much host memory is ready', () => {
    const status = makeStatus(makeGroup('a'));
    status.host = {
      budget: 64 * GiB,
      swapped: 2 * GiB,
      promised: 6 * GiB,
      pool: { in_use: 2 * GiB, prepared: 3 * GiB }
    };
    expect(view(status).gpus[0]?.host).toBe(
      '2 GiB in host memory, 1 GiB more ready'
    );
  });

  it("says whose memory leaves while a notebook's arrives", () => {
    const params = { arrived: GiB, footprint: 2 * GiB, victims: ['b.ipynb'] };
    const moving = makeGroup('a', {
      state: 'moving',
      reason: { code: 'filling', params }
    });
    expect(view(makeStatus(moving)).running[0]?.detail).toBe(
      'its memory is arriving while that of b leaves: 1 GiB of 2 GiB'
    );
  });

  it('marks the notebook in front and says its state aloud', () => {
    const waiting = makeGroup('a', { state: 'waiting', position: 2 });
    const result = view(makeStatus(waiting, makeGroup('b')), 0, 'a');
    expect(result.waiting[0]?.current).toBe(true);
    expect(result.idle[0]?.current).toBe(false);
    expect(result.announcement).toBe('a.ipynb waits for the GPU, position 2');
    // As time passes the words stay, or a screen reader would never be silent.
    expect(view(makeStatus(waiting), 60, 'a').announcement).toBe(
      result.announcement
    );
  });

  it('explains an empty panel', () => {
    expect(view(makeStatus()).explanation?.title).toBe(
      'Nobody uses the GPU yet'
    );
    expect(view({ ...makeStatus(), gpus: [] }).explanation?.title).toBe(
      'No GPU was found'
    );
    const availability = { code: 'no_driver', params: {} };
    expect(view({ ...makeStatus(), availability }).explanation?.title).toBe(
      'No NVIDIA driver was found'
    );
  });
});
