// SPDX-License-Identifier: BSD-3-Clause
import { formatBytes, formatDuration, formatPart } from '../format';
import { assignColours, COLOURS } from '../palette';
import { availabilityText, memoryText, noticeText, reasonText } from '../words';
import { plain, trans } from './fixtures';

const GiB = 1024 ** 3;

describe('formatBytes', () => {
  it.each([
    [0, '0 B'],
    [900, '900 B'],
    [1023, '1 KiB'],
    [1536 * 1024, '1.5 MiB'],
    [1023.9 * 1024 ** 2, '1 GiB'],
    [12.34 * GiB, '12.3 GiB'],
    [139 * GiB, '139 GiB']
  ])('words %d as %s', (bytes, expected) => {
    expect(plain(formatBytes(bytes))).toBe(expected);
  });

  it('uses the unit of the whole for a part', () => {
    expect(formatPart(512 * 1024 ** 2, 8 * GiB)).toEqual(['0.5', '8\u00a0GiB']);
    expect(formatPart(0, 8 * GiB)).toEqual(['0', '8\u00a0GiB']);
    expect(formatPart(1000, 8 * GiB)).toEqual(['< 0.01', '8\u00a0GiB']);
  });
});

describe('formatDuration', () => {
  it.each([
    [-1, '0.0 s'],
    [0.42, '0.4 s'],
    [0.97, '1 s'],
    [59.4, '59 s'],
    [59.6, '1 min'],
    [3599, '59 min'],
    [3600, '1 h'],
    [4800, '1 h 20 min'],
    [200000, '2 d']
  ])('words %d as %s', (seconds, expected) => {
    expect(plain(formatDuration(seconds))).toBe(expected);
  });
});

describe('assignColours', () => {
  it('keeps the colours of those who stay, and reuses those of who left', () => {
    const first = assignColours(new Map(), ['a', 'b', 'c']);
    expect([...first.values()]).toEqual([0, 1, 2]);
    const second = assignColours(first, ['c', 'b', 'd']);
    expect(second.get('b')).toBe(1);
    expect(second.get('c')).toBe(2);
    expect(second.get('d')).toBe(0);
  });

  it('shares colours evenly when there are too few', () => {
    const ids = Array.from({ length: 2 * COLOURS }, (_, index) => `${index}`);
    const uses = [...assignColours(new Map(), ids).values()];
    for (let colour = 0; colour < COLOURS; colour++) {
      expect(uses.filter(use => use === colour)).toHaveLength(2);
    }
  });
});

describe('reasonText', () => {
  const holder = { holder: 'h', holder_name: 'deep/train.ipynb' };

  it.each([
    [
      'needs_memory',
      { need: 60 * GiB, lack: 15 * GiB, ...holder, yields_in: 5 },
      'needs 60 GiB, lacks 15 GiB: train yields in 3 s'
    ],
    [
      'needs_memory',
      { need: 60 * GiB, lack: 15 * GiB, ...holder, yields_in: null },
      'needs 60 GiB, lacks 15 GiB: train has the GPU'
    ],
    [
      'serialised',
      { ...holder, yields_in: 1 },
      'one notebook at a time: train is about to yield'
    ],
    [
      'making_room',
      { lack: GiB, victims: ['a.ipynb', 'x/b.ipynb'] },
      'making room: moving 1 GiB of a, b to host memory'
    ],
    [
      'filling',
      { arrived: GiB, footprint: 3 * GiB, victims: ['a.ipynb'] },
      'its memory is arriving while that of a leaves: 1 GiB of 3 GiB'
    ],
    [
      'filling',
      { arrived: GiB, footprint: 3 * GiB, victims: [] },
      'its memory is arriving: 1 GiB of 3 GiB'
    ],
    [
      'draining',
      { ...holder, for: 1 },
      'train is finishing its last GPU work (for 3 s)'
    ],
    ['behind', { ahead: 'a', ahead_name: 'plots.ipynb' }, 'after plots'],
    [
      'residency',
      { ...holder, until_in: 4 },
      'its memory has only just arrived: train yields in 2 s'
    ],
    [
      'foreign_use',
      { lack: GiB, foreign: 3 * GiB },
      'lacks 1 GiB: programs outside the sharing hold 3 GiB'
    ],
    [
      'crowded',
      { lack: GiB, fixed: 3 * GiB },
      'lacks 1 GiB: others hold 3 GiB that cannot move (CUDA contexts, shared memory); shut a notebook down, or restart one that holds such memory'
    ],
    [
      'dying',
      { lack: GiB, ghosts: GiB },
      'lacks 1 GiB: memory of a process that ended is being freed'
    ],
    ['of_a_newer_scheduler', {}, 'waiting for the GPU']
  ])('words %s', (code, params, expected) => {
    expect(reasonText({ code, params }, trans, 2)).toBe(expected);
  });
});

describe('availabilityText', () => {
  it('says nothing when all is well', () => {
    expect(availabilityText({ code: 'ok', params: {} }, trans)).toBeNull();
  });

  it.each([
    ['no_driver', {}, 'GPUSHARE_SIM=1 jupyter lab'],
    ['scheduler_unreachable', { error: 'no answer' }, 'gpushare doctor'],
    [
      'server_extension_missing',
      {},
      'jupyter server extension enable jupyter_gpushare'
    ],
    [
      'provisioner_not_default',
      { provisioner: 'local-provisioner' },
      'c.KernelProvisionerFactory.default_provisioner_name = "gpushare"'
    ]
  ])('names a remedy for %s', (code, params, command) => {
    const explanation = availabilityText({ code, params }, trans);
    expect(explanation?.command).toBe(command);
    expect(explanation?.text).not.toContain('%');
    expect(explanation?.text).not.toContain('undefined');
  });

  it('shows what an unknown code of a newer server says', () => {
    const explanation = availabilityText(
      { code: 'on_strike', params: { error: 'No.' } },
      trans
    );
    expect(explanation?.text).toBe('No.');
  });
});

describe('memoryText', () => {
  it('says where the memory is', () => {
    expect(memoryText(0, 0, trans)).toBe('no memory');
    expect(memoryText(GiB, 0, trans)).toBe('all resident');
    expect(memoryText(0, GiB, trans)).toBe('all in host memory');
    expect(memoryText(2 * GiB, GiB, trans)).toBe(
      '2 GiB resident, 1 GiB in host memory'
    );
  });
});

describe('noticeText', () => {
  it('explains a kernel that runs without us', () => {
    expect(
      noticeText(
        'a.ipynb',
        { code: 'started_without_interposer', params: {} },
        trans
      )
    ).toContain('Restart the kernel');
  });
});
