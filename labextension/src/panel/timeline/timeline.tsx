// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { ITimeline, Kind } from '../../core/status';
import type { ITranslation } from '../../core/translation';
import { shortName } from '../../words/mentions';
import type { IWording } from '../../words/short';
import { kindText, othersText } from '../../words/states';
import type { Clock } from '../clock';
import { useClock } from '../clock';
import type { ILane, IMark } from './lanes';
import { makeLanes, makeMarks } from './lanes';
import type { IDrawnLane } from './picture';
import { LANE_HEIGHT, pathOf, Picture } from './picture';
import { Table } from './table';

/** Number of lanes that are drawn. A line below sums up the others. */
const LANES = 12;

interface ITimelineProps {
  timeline: ITimeline;
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  minutes: number;
}

/** The events of the last minutes, as a picture and as a table. */
export function Timeline(props: ITimelineProps): JSX.Element {
  const { timeline, colours, wording, clock, minutes } = props;
  const { trans, names } = wording;
  const headingId = React.useId();
  const [measure, width] = useWidth(200);
  const seconds = 60 * minutes;
  // Update only when the picture moves by a pixel.
  const step = seconds / width;
  const now = useClock(clock, now => Math.ceil(now / step) * step);
  const all = React.useMemo(
    () =>
      makeLanes(
        timeline,
        now - seconds,
        (group, name) => names.get(group) ?? shortName(name)
      ),
    [timeline, now, seconds, names]
  );
  const lanes = useMarks(all, now, seconds, width);
  const rest = all.length - lanes.length;
  return (
    <section
      className="jp-GpuShare-section jp-GpuShare-timeline"
      aria-labelledby={headingId}
    >
      <h3 id={headingId}>
        {trans._n('Last minute', 'Last %1 minutes', minutes)}
      </h3>
      {lanes.length === 0 ? (
        <p className="jp-GpuShare-quiet">
          {trans.__('No notebook used the GPU in this period.')}
        </p>
      ) : (
        <>
          <Picture
            lanes={lanes}
            colours={colours}
            wording={wording}
            clock={clock}
            width={width}
            measure={measure}
          />
          <div className="jp-GpuShare-axis" aria-hidden="true">
            <span>{trans.__('−%1 min', minutes)}</span>
            <span>{trans.__('now')}</span>
          </div>
          {rest > 0 && (
            <p className="jp-GpuShare-quiet">
              {trans.__(
                '%1: %2',
                othersText(rest, trans),
                sumText(all.slice(LANES), trans)
              )}
            </p>
          )}
          <Legend
            hibernation={lanes.some(({ spans }) =>
              spans.some(({ kind }) => kind === 'hibernated')
            )}
            trans={trans}
          />
          <Table lanes={all} wording={wording} clock={clock} />
        </>
      )}
    </section>
  );
}

/** The lanes that are drawn. Unchanged marks stay the same objects. */
function useMarks(
  all: readonly ILane[],
  now: number,
  seconds: number,
  width: number
): IDrawnLane[] {
  const before = React.useRef<{ scale: string; lanes: IDrawnLane[] }>();
  return React.useMemo(() => {
    const scale = [now, seconds, width].join();
    const known = before.current?.scale === scale ? before.current.lanes : [];
    const lanes = all.slice(0, LANES).map(lane => {
      const same = known.find(
        ({ group, spans }) =>
          group === lane.group &&
          spans.length === lane.spans.length &&
          spans.every((span, index) => span === lane.spans[index])
      );
      const marks = same?.marks ?? makeMarks(lane.spans, now, seconds, width);
      return { ...lane, marks };
    });
    before.current = { scale, lanes };
    return lanes;
  }, [all, now, seconds, width]);
}

/** How many times other notebooks ran and waited. */
function sumText(lanes: readonly ILane[], trans: ITranslation): string {
  const count = (kind: Kind): number =>
    lanes.reduce(
      (sum, lane) => sum + lane.spans.filter(span => span.kind === kind).length,
      0
    );
  return trans.__(
    '%1, %2',
    trans._n('ran once', 'ran %1 times', count('burst')),
    trans._n('waited once', 'waited %1 times', count('wait'))
  );
}

function Kinds(props: {
  hibernation: boolean;
  trans: ITranslation;
}): JSX.Element {
  const { hibernation, trans } = props;
  const kinds: Kind[] = ['burst', 'wait', 'in', 'out'];
  return (
    <div className="jp-GpuShare-legend">
      {(hibernation ? [...kinds, 'hibernated' as const] : kinds).map(kind => (
        <span key={kind}>
          <svg aria-hidden="true" width={14} height={LANE_HEIGHT - 4}>
            <path
              data-kind={kind}
              d={pathOf([{ ...NO_MARK, kind }], kind)}
              transform="translate(0 -2)"
            />
          </svg>
          {kindText(kind, trans)}
        </span>
      ))}
    </div>
  );
}

const Legend = React.memo(Kinds);

/** A mark for the legend. */
const NO_MARK: Omit<IMark, 'kind'> = {
  from: 1,
  to: 13,
  count: 1,
  start: 0,
  end: 0,
  seconds: 0,
  bytes: 0
};

/** The current width of an element in whole pixels. */
function useWidth(
  initial: number
): [(element: Element | null) => void, number] {
  const [width, setWidth] = React.useState(initial);
  const observer = React.useRef<ResizeObserver | null>(null);
  const measure = React.useCallback((element: Element | null): void => {
    observer.current?.disconnect();
    observer.current = null;
    if (element) {
      observer.current = new ResizeObserver(entries => {
        const found = entries[entries.length - 1]?.contentRect.width ?? 0;
        if (found > 0) {
          setWidth(Math.floor(found));
        }
      });
      observer.current.observe(element);
    }
  }, []);
  return [measure, width];
}
