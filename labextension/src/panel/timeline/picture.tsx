// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { Name } from '../../components/name';
import { formatBytes, formatDuration, formatExactly } from '../../core/format';
import type { Kind } from '../../core/status';
import { isolate, wordName } from '../../words/mentions';
import type { IWording } from '../../words/short';
import { kindText, soFarText } from '../../words/states';
import type { Clock } from '../clock';
import type { ILane, IMark } from './lanes';
import { KINDS, markAt } from './lanes';

export const LANE_HEIGHT = 18;

/** The vertical position of each kind in its lane, in pixels from the top. */
const SHAPES: Record<Kind, { top: number; height: number }> = {
  burst: { top: 3, height: 12 },
  wait: { top: 7.5, height: 3 },
  hibernated: { top: 8.5, height: 1 },
  in: { top: 4, height: 10 },
  out: { top: 4, height: 10 }
};

export interface IDrawnLane extends ILane {
  marks: IMark[];
}

interface IPictureProps {
  lanes: IDrawnLane[];
  colours: ReadonlyMap<string, number>;
  wording: IWording;
  clock: Clock;
  width: number;
  measure: (element: Element | null) => void;
}

/** The lanes. The pointer or the arrow keys select the event that is explained. */
export function Picture(props: IPictureProps): JSX.Element {
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
    // In another lane, select an event near the same time.
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
        'Timeline of events; use the arrow keys to move between events'
      )}
      aria-valuemin={1}
      aria-valuemax={Math.max(1, total)}
      aria-valuenow={index + 1}
      aria-valuetext={text || trans._n('%1 event', '%1 events', total)}
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

/** The marks of a lane, rendered again only when they change. */
const Marks = React.memo(LaneMarks);

export function pathOf(marks: readonly IMark[], kind: Kind): string {
  const { top, height } = SHAPES[kind];
  return marks
    .filter(mark => mark.kind === kind)
    .map(({ from, to }) => {
      const width = (to - from).toFixed(1);
      return `M${from.toFixed(1)} ${top}h${width}v${height}h-${width}z`;
    })
    .join('');
}

/** Explain a mark: the notebook, the event, its duration, size and start. */
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
      ? soFarText(count > 1 ? seconds : now - start, trans)
      : formatExactly(seconds);
  const size = bytes > 0 ? [formatBytes(bytes, units)] : [];
  const since = trans.__('%1 ago', formatDuration(now - start));
  return [isolate(lane.name), many, length, ...size, since].join(' · ');
}
