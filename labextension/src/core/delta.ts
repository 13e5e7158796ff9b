// SPDX-License-Identifier: BSD-3-Clause
import type { IAnnouncement, IDelta, IStatus, ITimeline } from './status';

/** The limits of the scheduler. */
const MOST_SPANS = 5000;
const MOST_SAMPLES = 20_000;

type Check = (value: unknown) => boolean;

const isText: Check = value => typeof value === 'string';
const isNumber: Check = value =>
  typeof value === 'number' && Number.isFinite(value);
const isFlag: Check = value => typeof value === 'boolean';
const isParams: Check = value =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function nullable(check: Check): Check {
  return value => value === null || check(value);
}

function optional(check: Check): Check {
  return value => value === undefined || check(value);
}

function oneOf(...values: string[]): Check {
  return value => typeof value === 'string' && values.includes(value);
}

function arrayOf(check: Check): Check {
  return value => Array.isArray(value) && value.every(check);
}

function shape(members: Record<string, Check>): Check {
  const checks = Object.entries(members);
  return value =>
    isParams(value) &&
    checks.every(([name, check]) =>
      check((value as Record<string, unknown>)[name])
    );
}

function numbers(...names: string[]): Record<string, Check> {
  return Object.fromEntries(names.map(name => [name, isNumber]));
}

const isCode = shape({ code: isText, params: isParams });

/** The reason why a notebook is not hibernated. */
const asWhy = { code: nullable(isText), text: isText };

const isSession = shape({
  path: isText,
  name: isText,
  type: isText,
  kernel_id: isText
});

const isGpu = shape({
  uuid: isText,
  name: isText,
  ...numbers('index', 'total', 'reserve', 'used', 'resident', 'unevictable'),
  ...numbers('contexts', 'foreign', 'pending_reclaim', 'free'),
  utilization: nullable(isNumber),
  draining: isFlag
});

const isGroup = shape({
  id: isText,
  name: isText,
  kind: isText,
  state: oneOf(
    ...['running', 'idle_lease', 'finishing', 'waiting', 'restoring', 'idle'],
    ...['hibernated', 'waking', 'prefetching']
  ),
  since: isNumber,
  position: nullable(isNumber),
  reason: nullable(isCode),
  yields_in: nullable(isNumber),
  estimate: nullable(shape(numbers('seconds', 'low', 'high'))),
  preferences: shape({
    priority: oneOf('auto', 'interactive', 'agent', 'background'),
    keep: isFlag,
    frozen: isFlag,
    on_hold: isFlag,
    exclusive: isFlag,
    ...numbers('memory', 'request', 'limit', 'weight')
  }),
  class: oneOf('interactive', 'agent', 'background'),
  user: isText,
  cell: nullable(
    shape({ msg_id: isText, ...numbers('since', 'waited', 'ran') })
  ),
  last_cell: nullable(shape({ msg_id: isText, ...numbers('waited', 'ran') })),
  queued: optional(isNumber),
  gpus: arrayOf(
    shape({
      uuid: isText,
      ...numbers('footprint', 'resident', 'swapped', 'unevictable', 'context'),
      clean: optional(isNumber),
      shared: optional(isNumber),
      disk: optional(isNumber)
    })
  ),
  sessions: arrayOf(isSession),
  totals: shape(
    numbers('bursts', 'waits', 'waited', 'ran', 'evicted', 'restored')
  ),
  hibernation: optional(
    nullable(
      shape({
        ...asWhy,
        ...numbers('since', 'frees'),
        state: isText,
        estimate: nullable(isNumber)
      })
    )
  ),
  prefetch: optional(
    nullable(
      shape({
        hint: isText,
        stage: isText,
        ...numbers('likelihood', 'since')
      })
    )
  )
});

const isSpan = shape({
  id: isNumber,
  group: isText,
  name: isText,
  kind: oneOf('burst', 'wait', 'in', 'out', 'hibernated'),
  start: isNumber,
  end: nullable(isNumber),
  gpu: nullable(isText),
  bytes: isNumber
});

const isSample: Check = value =>
  Array.isArray(value) &&
  isNumber(value[0]) &&
  isText(value[1]) &&
  isNumber(value[2]);

const isHost = nullable(
  shape({
    ...numbers('budget', 'swapped', 'promised'),
    pool: optional(nullable(shape(numbers('in_use', 'prepared')))),
    disk_tier: optional(nullable(shape({ fault: isText })))
  })
);

const isSettings = nullable(
  shape({
    quantum: value => value === 'auto' || isNumber(value),
    anti_thrash: oneOf('auto', 'on', 'off'),
    policy: isText,
    policies: optional(arrayOf(isText)),
    hibernate_after: optional(nullable(isNumber)),
    prefetch: optional(isFlag)
  })
);

const isHibernation = optional(
  nullable(shape({ ...asWhy, able: nullable(isFlag), moves: isFlag }))
);

const isNotices = arrayOf(
  shape({ group: isText, code: isText, params: isParams, time: isNumber })
);

const isUnshared = arrayOf(
  shape({
    kernel_id: isText,
    code: isText,
    params: isParams,
    sessions: arrayOf(isSession)
  })
);

const isSet = shape({
  availability: optional(isCode),
  host: optional(isHost),
  settings: optional(isSettings),
  hibernation: isHibernation,
  notices: optional(isNotices),
  unshared: optional(isUnshared)
});

const isAnnouncement = shape({ stream: isText, sequence: isNumber });

const isDelta = shape({
  stream: isText,
  ...numbers('sequence', 'time'),
  set: isSet,
  gpus: arrayOf(isGpu),
  groups: arrayOf(isGroup),
  removed: arrayOf(isText),
  spans: arrayOf(isSpan),
  samples: arrayOf(isSample)
});

const isStatus = shape({
  stream: isText,
  ...numbers('sequence', 'time'),
  availability: isCode,
  may: shape({ adjust: isFlag, settings: isFlag }),
  host: isHost,
  settings: isSettings,
  hibernation: isHibernation,
  notices: isNotices,
  unshared: isUnshared,
  gpus: arrayOf(isGpu),
  groups: arrayOf(isGroup),
  timeline: optional(
    nullable(
      shape({
        start: isNumber,
        spans: arrayOf(isSpan),
        samples: arrayOf(isSample)
      })
    )
  )
});

/** Check a status from the server; null if it comes from another version. */
export function readStatus(value: unknown): IStatus | null {
  if (!isStatus(value)) {
    return null;
  }
  const status = value as IStatus;
  return {
    ...status,
    groups: status.groups.map(group => ({ ...group, at: status.time })),
    hibernation: status.hibernation ?? null,
    timeline: status.timeline ?? null
  };
}

/** Check an announcement from the event bus, where any client can post; null if it is not valid. */
export function readAnnouncement(value: unknown): IAnnouncement | null {
  return isAnnouncement(value) ? (value as IAnnouncement) : null;
}

const isChanges = shape({
  stream: isText,
  sequence: isNumber,
  deltas: arrayOf(isDelta)
});

/** Check deltas from the server; null if they come from another version. */
export function readChanges(
  value: unknown
): (IAnnouncement & { deltas: IDelta[] }) | null {
  return isChanges(value)
    ? (value as IAnnouncement & { deltas: IDelta[] })
    : null;
}

/**
 * Apply a delta to a status. Parts that did not change stay the same objects.
 *
 * @param history - Seconds of the timeline to keep.
 */
export function applyDelta(
  status: IStatus,
  delta: IDelta,
  history: number
): IStatus {
  const { availability, host, settings, hibernation, notices, unshared } = {
    ...status,
    ...delta.set
  };
  return {
    ...status,
    sequence: delta.sequence,
    time: delta.time,
    availability,
    host,
    settings,
    hibernation,
    notices,
    unshared,
    gpus: delta.gpus.length
      ? replace(status.gpus, delta.gpus, gpu => gpu.uuid).sort(
          (a, b) => a.index - b.index
        )
      : status.gpus,
    groups: replace(
      status.groups,
      delta.groups.map(group => ({ ...group, at: delta.time })),
      group => group.id,
      delta.removed
    ),
    timeline:
      status.timeline &&
      trim(
        {
          start: status.timeline.start,
          spans: replace(status.timeline.spans, delta.spans, span => span.id),
          samples: delta.samples.length
            ? [...status.timeline.samples, ...delta.samples]
            : status.timeline.samples
        },
        delta.time - history
      )
  };
}

/** Remove the part of a timeline before a time. */
export function trim(timeline: ITimeline, from: number): ITimeline {
  const { spans, samples } = timeline;
  const later = spans
    .filter(span => span.end === null || span.end >= from)
    .slice(-MOST_SPANS);
  const late = samples.filter(([time]) => time >= from).slice(-MOST_SAMPLES);
  return {
    start: Math.max(timeline.start, from),
    spans: later.length < spans.length ? later : spans,
    samples: late.length < samples.length ? late : samples
  };
}

/**
 * Return a new status in which unchanged parts are the same objects as before.
 */
export function keepSame(before: IStatus | null, after: IStatus): IStatus {
  if (!before) {
    return after;
  }
  const groups = new Map(before.groups.map(group => [group.id, group]));
  const gpus = new Map(before.gpus.map(gpu => [gpu.uuid, gpu]));
  return {
    ...after,
    availability: same(before.availability, after.availability),
    may: same(before.may, after.may),
    settings: same(before.settings, after.settings),
    hibernation: same(before.hibernation, after.hibernation),
    host: same(before.host, after.host),
    notices: same(before.notices, after.notices),
    unshared: same(before.unshared, after.unshared),
    gpus: after.gpus.map(gpu => same(gpus.get(gpu.uuid), gpu)),
    groups: after.groups.map(group => {
      const known = groups.get(group.id);
      return known && same(known, { ...group, at: known.at }) === known
        ? known
        : group;
    })
  };
}

/** Return the old value if it is equal to the new one. The server always writes members in the same order, so equal values have equal texts. */
function same<T>(before: T | undefined, after: T): T {
  return before !== undefined &&
    JSON.stringify(before) === JSON.stringify(after)
    ? before
    : after;
}

/** Return the items after replacing or adding some and removing others. */
function replace<T, K>(
  items: T[],
  changed: T[],
  key: (item: T) => K,
  removed: readonly K[] = []
): T[] {
  if (changed.length === 0 && removed.length === 0) {
    return items;
  }
  const all = new Map(items.map(item => [key(item), item]));
  for (const item of changed) {
    all.set(key(item), item);
  }
  for (const gone of removed) {
    all.delete(gone);
  }
  return [...all.values()];
}
