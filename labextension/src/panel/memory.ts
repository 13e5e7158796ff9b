// SPDX-License-Identifier: BSD-3-Clause
import { formatBytes } from '../core/format';
import type { IGroupShare } from '../core/shares';
import { isResidue } from '../core/shares';
import type { IGpu, IHost } from '../core/status';
import { isolate, shortName } from '../words/mentions';
import { partText } from '../words/panel';
import { hostMemoryText } from '../words/short';
import type { IWording } from '../words/short';

/** The kinds of memory that a bar shows. */
export type Part =
  | 'contexts'
  | 'foreign'
  | 'pending_reclaim'
  | 'free'
  | 'others'
  | 'unevictable'
  | 'resident'
  | 'swapped';

/** A part of a memory bar. */
export interface ISegment {
  key: string;
  part: Part;
  /** The colour of the notebook; null for other memory. */
  colour: number | null;
  bytes: number;
  percent: number;
  /** The name of the notebook or of the kind of memory. */
  name: string;
  size: string;
  /** The name with the size. */
  title: string;
}

export interface IGpuView {
  /** The memory in use on the GPU. */
  segments: ISegment[];
  /** The memory that was evicted to the host, in proportion to the host memory budget. */
  host: ISegment[];
  /** The memory of the GPU that is free; null if there is none. */
  free: ISegment | null;
  /** `5.6 of 8 GiB`. */
  used: string;
  hostText: string;
}

/** With more groups than this, groups with less than MERGED percent share a segment. */
const SEGMENTS = 12;

const MERGED = 1.5;

/** Compute the bar and the texts of a GPU. */
export function makeGpu(
  gpu: IGpu,
  groups: readonly IGroupShare[],
  host: IHost | null,
  colours: ReadonlyMap<string, number>,
  wording: IWording
): IGpuView {
  const { trans, units, names } = wording;
  const size = (bytes: number): string => formatBytes(bytes, units);
  const labels = {
    contexts: trans.__('CUDA contexts'),
    foreign: isResidue(gpu, groups)
      ? trans.__('left over from hibernated notebooks')
      : trans.__('other programs'),
    pending_reclaim: trans.__('being freed')
  };
  const shares = groups.map(share => ({
    ...share,
    name: isolate(names.get(share.id) ?? shortName(share.name)),
    colour: colours.get(share.id) ?? 0
  }));
  const crowded = shares.length > SEGMENTS;
  const segment = (
    key: string,
    part: Part,
    bytes: number,
    whole: number,
    label: string,
    colour: number | null = null
  ): ISegment => ({
    key: `${key} ${part}`,
    part,
    colour,
    bytes,
    percent: whole > 0 ? (100 * bytes) / whole : 0,
    name: label,
    size: size(bytes),
    title: trans.__('%1: %2', label, size(bytes))
  });
  const stack = (
    whole: number,
    parts: ('resident' | 'unevictable' | 'swapped')[]
  ): ISegment[] => {
    const result: ISegment[] = [];
    let [others, count] = [0, 0];
    for (const share of shares) {
      const bytes = parts.reduce((sum, part) => sum + share[part], 0);
      if (crowded && bytes > 0 && (100 * bytes) / whole < MERGED) {
        others += bytes;
        count++;
        continue;
      }
      for (const part of parts.filter(part => share[part] > 0)) {
        const { id, name, colour } = share;
        const label =
          part === 'unevictable' ? trans.__('%1, unevictable', name) : name;
        result.push(segment(id, part, share[part], whole, label, colour));
      }
    }
    if (count > 0) {
      const label = trans._n('%1 small notebook', '%1 small notebooks', count);
      result.push(segment('', 'others', others, whole, label));
    }
    return result;
  };

  const segments = stack(gpu.total, ['resident', 'unevictable']);
  for (const part of ['contexts', 'pending_reclaim', 'foreign'] as const) {
    if (gpu[part] > 0) {
      const label = labels[part];
      segments.push(segment('', part, gpu[part], gpu.total, label));
    }
  }
  const swapped = shares.reduce((sum, share) => sum + share.swapped, 0);
  // The driver's value can be older than the notebooks' reports. The text must agree with the bar.
  const shown = segments.reduce((sum, { bytes }) => sum + bytes, 0);
  return {
    segments,
    host:
      swapped > 0
        ? stack(Math.max(host?.budget ?? 0, swapped), ['swapped'])
        : [],
    free:
      gpu.free > 0
        ? segment('', 'free', gpu.free, gpu.total, trans.__('free'))
        : null,
    used: partText(Math.max(gpu.used, shown), gpu.total, units, trans),
    hostText: hostText(swapped, host, wording)
  };
}

function hostText(
  swapped: number,
  host: IHost | null,
  { trans, units }: IWording
): string {
  const size = (bytes: number): string => formatBytes(bytes, units);
  const ready = Math.max(
    0,
    (host?.pool?.prepared ?? 0) - (host?.pool?.in_use ?? 0)
  );
  if (swapped > 0 && ready > 0) {
    return trans.__(
      '%1 in host memory, %2 more prepared',
      size(swapped),
      size(ready)
    );
  }
  if (ready > 0) {
    return trans.__('%1 of host memory prepared', size(ready));
  }
  return swapped > 0 ? hostMemoryText(size(swapped), trans) : '';
}
