// SPDX-License-Identifier: BSD-3-Clause
import type { ISpan, ITimeline, Kind } from '../../core/status';

/** In drawing order: later kinds cover earlier ones. */
export const KINDS: readonly Kind[] = [
  'hibernated',
  'wait',
  'burst',
  'out',
  'in'
];

/** The events of one group. */
export interface ILane {
  group: string;
  name: string;
  /** Oldest first. */
  spans: ISpan[];
}

/** Spans of one kind that are drawn as one, because they are too close to tell apart. */
export interface IMark {
  kind: Kind;
  /** In pixels. */
  from: number;
  to: number;
  count: number;
  start: number;
  /** Null while the last span continues. */
  end: number | null;
  /** The total duration in seconds. */
  seconds: number;
  bytes: number;
}

/** The narrowest mark of each kind, in pixels, so that short events can be seen. */
const NARROWEST: Record<Kind, number> = {
  hibernated: 1,
  wait: 1,
  burst: 1.5,
  in: 3,
  out: 3
};

/** Reused, because `localeCompare` creates a collator for each call. */
const NAMES = new Intl.Collator();

/** Return a lane for each group with events since a time, the most recently active one first. */
export function makeLanes(
  timeline: ITimeline,
  since: number,
  nameOf: (group: string, name: string) => string
): ILane[] {
  const lanes = new Map<string, ILane & { last: number }>();
  const shown = timeline.spans.filter(({ end }) => (end ?? Infinity) >= since);
  for (const span of shown) {
    if (span.kind === 'hibernated') {
      continue;
    }
    const end = span.end ?? Infinity;
    const lane = lanes.get(span.group);
    if (lane) {
      lane.spans.push(span);
      lane.last = Math.max(lane.last, end);
    } else {
      const name = nameOf(span.group, span.name);
      const { group } = span;
      lanes.set(group, { group, name, spans: [span], last: end });
    }
  }
  // Groups that are only hibernated get no lane.
  for (const span of shown) {
    if (span.kind === 'hibernated') {
      lanes.get(span.group)?.spans.push(span);
    }
  }
  // Active groups are sorted by name, so that lanes do not change places all the time.
  return [...lanes.values()].sort((a, b) =>
    a.last === b.last ? NAMES.compare(a.name, b.name) : b.last - a.last
  );
}

/** Return the marks of a lane from left to right, for a width in pixels. */
export function makeMarks(
  spans: readonly ISpan[],
  now: number,
  seconds: number,
  width: number
): IMark[] {
  const marks: IMark[] = [];
  const open: Partial<Record<Kind, IMark>> = {};
  const since = now - seconds;
  const scale = width / seconds;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    const { kind, start, end, bytes } = span;
    const last = Math.min(now, end ?? now);
    const narrowest = NARROWEST[kind];
    const from = Math.min(
      Math.max(0, (start - since) * scale),
      width - narrowest
    );
    const to = Math.max(from + narrowest, (last - since) * scale);
    const before = open[kind];
    const lasted = Math.max(0, last - start);
    if (before && from <= before.to + 1) {
      before.to = Math.max(before.to, to);
      before.count++;
      before.end =
        before.end === null || end === null ? null : Math.max(before.end, end);
      before.seconds += lasted;
      before.bytes += bytes;
    } else {
      const mark: IMark = {
        kind,
        from,
        to,
        count: 1,
        start,
        end,
        seconds: lasted,
        bytes
      };
      open[kind] = mark;
      marks.push(mark);
    }
  }
  return marks.sort((a, b) => a.from - b.from || a.to - b.to);
}

/** Return the smallest mark at a position; null if there is none nearby. */
export function markAt(marks: readonly IMark[], x: number): IMark | null {
  const near = marks.filter(mark => mark.from - 2 <= x && x <= mark.to + 2);
  return near.reduce<IMark | null>(
    (best, mark) =>
      best === null || mark.to - mark.from < best.to - best.from ? mark : best,
    null
  );
}

/** Return a GPU's utilisation over time as the path of a step line. */
export function utilisationPath(
  samples: ITimeline['samples'],
  uuid: string,
  now: number,
  seconds: number,
  width: number,
  height: number
): string {
  const since = now - seconds;
  const steps: [number, number][] = [];
  // Backwards, to the last sample before the start of the picture.
  for (let index = samples.length - 1; index >= 0; index--) {
    const sample = samples[index];
    if (sample && sample[1] === uuid) {
      steps.push([Math.max(since, sample[0]), sample[2]]);
      if (sample[0] <= since) {
        break;
      }
    }
  }
  if (steps.length === 0) {
    return '';
  }
  const x = (time: number): string =>
    Math.min(width, ((time - since) / seconds) * width).toFixed(1);
  const y = (percent: number): string =>
    (height - (Math.min(100, Math.max(0, percent)) / 100) * height).toFixed(1);
  const [first, ...rest] = steps.reverse();
  return first
    ? `M${x(first[0])} ${y(first[1])}` +
        rest.map(([time, value]) => `H${x(time)}V${y(value)}`).join('') +
        `H${width}`
    : '';
}
