// SPDX-License-Identifier: BSD-3-Clause
import { GiB, plain, trans } from '../../__tests__/fixtures';
import { reasonText } from '../reasons';
import type { IWording } from '../short';

const wording: IWording = { trans, units: 'binary', names: new Map() };

describe('reasonText', () => {
  const holder = { holder: 'h', holder_name: 'deep/train.ipynb' };

  it.each([
    [
      'needs_memory',
      { need: 60 * GiB, lack: 15 * GiB, ...holder, yields_in: 5 },
      "needs 15 GiB more; train's turn ends within 3 s"
    ],
    [
      'needs_memory',
      { need: 60 * GiB, lack: 15 * GiB, ...holder, yields_in: null },
      'needs 15 GiB more; train has the GPU'
    ],
    [
      'serialised',
      { ...holder, yields_in: 1 },
      "one notebook at a time (anti-thrash is on); train's turn is about to end"
    ],
    [
      'making_room',
      { lack: GiB, victims: ['a.ipynb', 'x/b.ipynb'] },
      'making room by evicting 1 GiB of a, b'
    ],
    [
      'making_room',
      { lack: GiB, victims: ['a.ipynb'], clean: GiB / 2 },
      'making room by evicting 1 GiB of a, 512 MiB of it without a copy because it has not changed'
    ],
    [
      'filling',
      { arrived: GiB, footprint: 3 * GiB, victims: ['a.ipynb'] },
      'restoring its memory while evicting a: 1 GiB of 3 GiB'
    ],
    [
      'filling',
      { arrived: GiB, footprint: 3 * GiB, victims: [] },
      'restoring its memory: 1 GiB of 3 GiB'
    ],
    [
      'draining',
      { ...holder, for: 1 },
      'waiting for train to finish its queued GPU work (3 s so far)'
    ],
    [
      'draining',
      { ...holder, for: 1, kernel: 'matmul', kernel_for: 10 },
      'the CUDA kernel `matmul` of train has been running for 12 s'
    ],
    [
      'stuck',
      { ...holder, for: 40, lack: GiB },
      'train has not responded for 42 s. It may be stopped, or its GPU work may be stuck. Interrupt or restart it.'
    ],
    [
      'stuck',
      { ...holder, for: 40, kernel: 'matmul', kernel_for: 50 },
      'train has not released the GPU: its CUDA kernel `matmul` has been running for 52 s. Interrupt or restart it.'
    ],
    [
      'limited',
      { until_in: 5, whose: '' },
      'it has reached the GPU time limit; more in 3 s'
    ],
    [
      'limited',
      { until_in: 5, whose: 'user:ada' },
      'user ada has reached the GPU time limit; more in 3 s'
    ],
    [
      'limited',
      { until_in: 5, whose: 'team:course' },
      'team course has reached the GPU time limit; more in 3 s'
    ],
    [
      'thrashing',
      { ...holder, yields_in: 5 },
      "paging slowed both notebooks down when they ran side by side, so they take turns; train's turn ends within 3 s"
    ],
    [
      'behind',
      { ahead: 'a', ahead_name: 'plots.ipynb' },
      'plots is ahead in the queue'
    ],
    [
      'residency',
      { ...holder, until_in: 4 },
      "train's memory was just restored; it can be evicted in 2 s"
    ],
    [
      'foreign_use',
      { lack: GiB, foreign: 3 * GiB },
      'needs 1 GiB more; programs not managed by gpushare hold 3 GiB'
    ],
    [
      'crowded',
      { lack: GiB, fixed: 3 * GiB },
      'needs 1 GiB more; other notebooks hold 3 GiB of unevictable memory (CUDA contexts, shared memory). Shut one of them down or restart it.'
    ],
    [
      'no_room',
      { need: GiB, attempts: 2 },
      'needs 1 GiB of free GPU memory to wake up, and more is in use than expected; trying again. No data is lost.'
    ],
    [
      'dying',
      { lack: GiB, pending_reclaim: GiB },
      'needs 1 GiB more; waiting for the driver to free 1 GiB of a process that has exited'
    ],
    [
      'returning',
      { lack: GiB, clients: 2 },
      'needs 1 GiB more; waiting for 2 processes to reconnect to the restarted scheduler'
    ],
    [
      'host_memory',
      { lack: GiB, until_in: 20 },
      'needs 1 GiB more, but the host has too little free memory; the allocation fails within 18 s unless memory is freed'
    ],
    [
      'restore_failed',
      { attempts: 3, error: 999 },
      'restoring its memory failed 3 times (CUDA error 999); trying again. No data is lost.'
    ],
    [
      'restore_failed',
      { attempts: 1, error: null },
      'restoring its memory failed once; trying again. No data is lost.'
    ],
    ['frozen', {}, 'frozen; unfreeze it to continue'],
    ['on_hold', {}, 'on hold; only an administrator can resume it'],
    [
      'quota_gpus',
      { ...holder, whose: 'user:ada', gpus: 1, own: 1, yields_in: 5 },
      "user ada may use 1 GPU at once; train's turn ends within 3 s"
    ],
    [
      'quota_gpus',
      { whose: 'team:lab', gpus: 2, own: 1, holder_name: null },
      'team lab may use 2 GPUs at once; other notebooks of the same user or team are ahead'
    ],
    [
      'quota_gpus',
      { whose: 'user:ada', gpus: 1, own: 2, holder_name: null },
      'user ada may use 1 GPU at once, and this notebook alone uses 2; restart it on fewer GPUs'
    ],
    [
      'gpu_draining',
      { gpu: 'GPU-0' },
      'an administrator is draining its GPU; wait, or restart the kernel to get another GPU'
    ],
    [
      'kept',
      { ...holder, lack: GiB, until_in: 240 },
      'needs 1 GiB more; train keeps its idle memory on the GPU, for at most 4 min more'
    ],
    [
      'exclusive',
      { ...holder, lack: GiB, until_in: 62 },
      'train has the GPU to itself for one cell, for at most 1 min more'
    ],
    [
      'making_room',
      { lack: 'much', victims: [7, null, 'a.ipynb'] },
      'making room by evicting 0 B of a'
    ],
    ['of_a_newer_scheduler', {}, 'waiting for the GPU']
  ])('words %s', (code, params, expected) => {
    expect(plain(reasonText({ code, params }, wording, 2))).toBe(expected);
  });

  it('uses the current name of the holder', () => {
    const reason = { code: 'serialised', params: { ...holder, yields_in: 9 } };
    const names = new Map([['h', 'b/renamed.ipynb']]);
    expect(plain(reasonText(reason, { ...wording, names }))).toBe(
      "one notebook at a time (anti-thrash is on); b/renamed's turn ends within 9 s"
    );
  });

  it('formats sizes in the chosen units', () => {
    const reason = { code: 'making_room', params: { lack: 2e9 } };
    expect(plain(reasonText(reason, { ...wording, units: 'decimal' }))).toBe(
      'making room by evicting 2 GB'
    );
  });
});
