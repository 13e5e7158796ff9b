// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { formatBytes, formatDuration, formatExactly } from '../../core/format';
import type { ISpan, ITimeline } from '../../core/status';
import type { IWording } from '../../words/short';
import { isolate, shortName, wordName } from '../../words/short';
import type { Clock } from '../clock';
import { useClock } from '../clock';
import { Name } from '../../components/name';
import type { ILane, IMark, Kind } from './lanes';
import { KINDS, makeLanes, makeMarks, markAt } from './lanes';

/** Lanes that are drawn; what happened in the others is summed in a line. */
const LANES = 12;

const LANE_HEIGHT = 18;

/** Rows of the table. */
const ROWS = 200;

/** Where a kind is drawn in its lane, in pixels from its top. */
const SHAPES: Record<Kind, { top: number; height: number }> = {
  burst: { top: 3, height: 12 },
  wait: { top: 7.5, height: 3 },
  hibernated: { top: 8.5, height: 1 },
  in: { top: 4, height: 10 },
  out: { top: 4, height: 10 }
};

interface ITimelineProps {
  timeline: ITimeline;
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  minutes: number;
}

interface IDrawnLane extends ILane {
  marks: IMark[];
}

/** What a kind is called. */
function kindText(kind: Kind, trans: TranslationBundle): string {
  return {
    burst: trans.__('running'),
    wait: trans.__('waiting'),
    hibernated: trans.__('hibernated'),
    in: trans.__('memory arriving'),
    out: trans.__('memory leaving')
  }[kind];
}

/** The time of the day at which something began. */
function timeText(start: number, now: number): string {
  return new Date(Date.now() - (now - start) * 1000).toLocaleTimeString([], {
    hourCycle: 'h23'
  });
}

/** What happened in the last minutes, as a picture and as a table. */
export function Timeline(props: ITimelineProps): JSX.Element {
  const { timeline, colours, wording, clock, minutes } = props;
  const { trans, names } = wording;
  const [measure, width] = useWidth(200);
  const seconds = 60 * minutes;
  // The picture moves when it would differ by a pixel.
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
      aria-labelledby="jp-GpuShare-timeline"
    >
      <h3 id="jp-GpuShare-timeline">
        {trans._n('Last minute', 'Last %1 minutes', minutes)}
      </h3>
      {lanes.length === 0 ? (
        <p className="jp-GpuShare-quiet">
          {trans.__('Nobody used the GPU in this time.')}
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
                trans._n('and %1 other', 'and %1 others', rest),
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

/** The lanes that are drawn; the marks are the same objects where nothing moved. */
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

/** How often others ran and waited. */
function sumText(lanes: readonly ILane[], trans: TranslationBundle): string {
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

interface IPictureProps {
  lanes: IDrawnLane[];
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  width: number;
  measure: (element: Element | null) => void;
}

/** The lanes; the pointer or the arrow keys choose what is explained. */
function Picture(props: IPictureProps): JSX.Element {
  const { lanes, colours, wording, clock, width, measure } = props;
  const { trans } = wording;
  const [chosen, choose] = React.useState<{
    lane: string;
    time: number;
  } | null>(null);
  const svg = React.useRef<SVGSVGElement | null>(null);
  const row = lanes.findIndex(lane => lane.group === chosen?.lane);
  const lane = lanes[row];
  const mark = lane?.marks.find(mark => mark.start === chosen?.time) ?? null;
  const text = lane && mark ? markText(lane, mark, wording, clock.now) : '';
  const total = lanes.reduce((sum, lane) => sum + lane.marks.length, 0);
  const index =
    lane && mark
      ? lanes.slice(0, row).reduce((sum, lane) => sum + lane.marks.length, 0) +
        lane.marks.indexOf(mark)
      : 0;

  const point = (event: React.PointerEvent): void => {
    const box = svg.current?.getBoundingClientRect();
    if (!box) {
      return;
    }
    const under = lanes[Math.floor((event.clientY - box.top) / LANE_HEIGHT)];
    const found =
      under &&
      markAt(
        under.marks,
        ((event.clientX - box.left) / (box.width || width)) * width
      );
    choose(under && found ? { lane: under.group, time: found.start } : null);
  };

  const move = (event: React.KeyboardEvent): void => {
    const last = lanes.length - 1;
    const at = Math.max(0, row);
    const marks = lanes[at]?.marks ?? [];
    const here = mark ? marks.indexOf(mark) : marks.length;
    const select = (lane: number, pick: (marks: IMark[]) => number): void => {
      const there = lanes[Math.min(last, Math.max(0, lane))];
      const found =
        there?.marks[
          Math.min(there.marks.length - 1, Math.max(0, pick(there.marks)))
        ];
      if (there && found) {
        choose({ lane: there.group, time: found.start });
      }
    };
    // In another lane it stays near the same time.
    const nearest = (others: IMark[]): number =>
      mark
        ? others.reduce(
            (best, other, index) =>
              Math.abs(other.to - mark.to) <
              Math.abs((others[best]?.to ?? 0) - mark.to)
                ? index
                : best,
            0
          )
        : others.length - 1;
    const keys: Record<string, () => void> = {
      ArrowLeft: () => select(at, () => here - 1),
      ArrowRight: () => select(at, () => here + 1),
      ArrowUp: () => select(at - 1, nearest),
      ArrowDown: () => select(row < 0 ? 0 : at + 1, nearest),
      Home: () => select(at, () => 0),
      End: () => select(at, marks => marks.length - 1),
      Escape: () => choose(null)
    };
    const act = keys[event.key];
    if (act) {
      event.preventDefault();
      event.stopPropagation();
      act();
    }
  };

  return (
    <div
      className="jp-GpuShare-picture"
      role="slider"
      tabIndex={0}
      aria-roledescription={trans.__('timeline')}
      aria-label={trans.__(
        'What happened; the arrow keys go from one thing to the next'
      )}
      aria-valuemin={1}
      aria-valuemax={Math.max(1, total)}
      aria-valuenow={index + 1}
      aria-valuetext={text || trans._n('%1 thing', '%1 things', total)}
      onKeyDown={move}
      onBlur={() => choose(null)}
    >
      <div className="jp-GpuShare-lanes" aria-hidden="true">
        {lanes.map(({ group, name }) => (
          <div
            key={group}
            title={name}
            data-chosen={group === lane?.group || undefined}
          >
            <Name text={wordName(name)} end={4} />
          </div>
        ))}
      </div>
      <div className="jp-GpuShare-marks" ref={measure}>
        <svg
          ref={svg}
          aria-hidden="true"
          width={width}
          height={lanes.length * LANE_HEIGHT}
          onPointerMove={point}
          onPointerLeave={() => choose(null)}
        >
          {lanes.map((lane, index) => (
            <g
              key={lane.group}
              data-colour={colours.get(lane.group)}
              transform={`translate(0 ${index * LANE_HEIGHT})`}
            >
              <Marks marks={lane.marks} />
            </g>
          ))}
          {mark && (
            <rect
              className="jp-GpuShare-chosen"
              x={mark.from - 1.5}
              y={row * LANE_HEIGHT + 1}
              width={mark.to - mark.from + 3}
              height={LANE_HEIGHT - 2}
              rx={2}
            />
          )}
        </svg>
      </div>
      {mark && (
        <div
          className="jp-GpuShare-tooltip"
          role="presentation"
          style={{ top: (row + 1) * LANE_HEIGHT + 2 }}
        >
          {text}
        </div>
      )}
    </div>
  );
}

function LaneMarks({ marks }: { marks: readonly IMark[] }): JSX.Element {
  return (
    <>
      {KINDS.map(kind => (
        <path key={kind} data-kind={kind} d={pathOf(marks, kind)} />
      ))}
    </>
  );
}

/** The marks of a lane, drawn again only when they are others. */
const Marks = React.memo(LaneMarks);

function pathOf(marks: readonly IMark[], kind: Kind): string {
  const { top, height } = SHAPES[kind];
  return marks
    .filter(mark => mark.kind === kind)
    .map(({ from, to }) => {
      const width = (to - from).toFixed(1);
      return `M${from.toFixed(1)} ${top}h${width}v${height}h-${width}z`;
    })
    .join('');
}

/** What a mark is: whose, what, how long, since when, how much. */
function markText(
  lane: ILane,
  mark: IMark,
  { trans, units }: IWording,
  now: number
): string {
  const { kind, count, seconds, start, end, bytes } = mark;
  const what = kindText(kind, trans);
  const many = count > 1 ? trans.__('%1 × %2', count, what) : what;
  const length =
    end === null
      ? trans.__('%1 so far', formatExactly(count > 1 ? seconds : now - start))
      : formatExactly(seconds);
  const size = bytes > 0 ? [formatBytes(bytes, units)] : [];
  const since = trans.__('%1 ago', formatDuration(now - start));
  return [isolate(lane.name), many, length, ...size, since].join(' · ');
}

function Kinds(props: {
  hibernation: boolean;
  trans: TranslationBundle;
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

/** The mark of the legend. */
const NO_MARK: Omit<IMark, 'kind'> = {
  from: 1,
  to: 13,
  count: 1,
  start: 0,
  end: 0,
  seconds: 0,
  bytes: 0
};

interface ITableProps {
  lanes: readonly ILane[];
  wording: IWording;
  clock: Clock;
}

/** The same as a table, which is made only while it is open. */
function Table({ lanes, wording, clock }: ITableProps): JSX.Element {
  const { trans } = wording;
  const [open, setOpen] = React.useState(false);
  return (
    <details
      className="jp-GpuShare-table"
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>{trans.__('As a table')}</summary>
      {open && <Rows lanes={lanes} wording={wording} clock={clock} />}
    </details>
  );
}

function Rows({ lanes, wording, clock }: ITableProps): JSX.Element {
  const { trans, units } = wording;
  const { now } = clock;
  const spans: { name: string; span: ISpan }[] = lanes
    .flatMap(({ name, spans }) => spans.map(span => ({ name, span })))
    .sort((a, b) => b.span.start - a.span.start);
  return (
    <div
      className="jp-GpuShare-scroll"
      role="region"
      tabIndex={0}
      aria-label={trans.__('What happened, newest first')}
    >
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('Notebook')}</th>
            <th scope="col">{trans.__('What')}</th>
            <th scope="col">{trans.__('Began')}</th>
            <th scope="col">{trans.__('Length')}</th>
            <th scope="col">{trans.__('Size')}</th>
          </tr>
        </thead>
        <tbody>
          {spans.slice(0, ROWS).map(({ name, span }) => (
            <tr key={span.id}>
              <td title={name}>
                <Name text={wordName(name)} end={6} />
              </td>
              <td>{kindText(span.kind, trans)}</td>
              <td>{timeText(span.start, now)}</td>
              <td>
                {span.end === null
                  ? trans.__('%1 so far', formatExactly(now - span.start))
                  : formatExactly(span.end - span.start)}
              </td>
              <td>{span.bytes > 0 ? formatBytes(span.bytes, units) : ''}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {spans.length > ROWS && (
        <p className="jp-GpuShare-quiet">
          {trans.__('The newest %1 of %2.', ROWS, spans.length)}
        </p>
      )}
    </div>
  );
}

/** The width of an element in whole pixels, as it changes. */
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
