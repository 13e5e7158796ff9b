// SPDX-License-Identifier: BSD-3-Clause
import type { ISpan, ITimeline, Kind } from '../../core/status';

/** In the order in which they are drawn: the later lies above. */
export const KINDS: readonly Kind[] = [
  'hibernated',
  'wait',
  'burst',
  'out',
  'in'
];

/** What happened to one group. */
export interface ILane {
  group: string;
  name: string;
  /** Oldest first. */
  spans: ISpan[];
}

/** Spans of one kind that are one thing to the eye. */
export interface IMark {
  kind: Kind;
  /** In pixels. */
  from: number;
  to: number;
  count: number;
  start: number;
  /** Null while the last of them lasts. */
  end: number | null;
  /** Seconds that they lasted together. */
  seconds: number;
  bytes: number;
}

/** A moment that is shorter than this is drawn as long, or nobody would see it. */
const NARROWEST: Record<Kind, number> = {
  hibernated: 1,
  wait: 1,
  burst: 1.5,
  in: 3,
  out: 3
};

/** To compare a string with `localeCompare` makes one each time. */
const NAMES = new Intl.Collator();

/** One lane for each group that did something since, the one that was active last first. */
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
  // Who only sleeps does nothing.
  for (const span of shown) {
    if (span.kind === 'hibernated') {
      lanes.get(span.group)?.spans.push(span);
    }
  }
  // Those that are active now keep their order, by name: lanes that jump cannot be read.
  return [...lanes.values()].sort((a, b) =>
    a.last === b.last ? NAMES.compare(a.name, b.name) : b.last - a.last
  );
}

/** What of a lane is drawn in so many pixels, from the left to the right. */
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

/** The mark at a place, the smallest if there are several; null if there is none near. */
export function markAt(marks: readonly IMark[], x: number): IMark | null {
  const near = marks.filter(mark => mark.from - 2 <= x && x <= mark.to + 2);
  return near.reduce<IMark | null>(
    (best, mark) =>
      best === null || mark.to - mark.from < best.to - best.from ? mark : best,
    null
  );
}

/** A GPU's utilisation over the time, as a line of steps in a picture of that size. */
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
  // Backwards, up to the one that was in force when the picture begins.
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
