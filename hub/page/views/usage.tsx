// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { isolate } from '../../../labextension/src/words/mentions';
import type { Division, INodeUsage, IUsage, IUse } from '../messages';
import type { Service } from '../service';
import type { IState } from '../store';
import { Table } from '../table';
import { hours, kwh, money, nameOf, size, TEXT } from '../text';

const DAY = 24 * 3600;
const GIB_HOUR = 3600 * 2 ** 30;
/** The periods to choose from, in days. */
const PERIODS = [1, 7, 30, 365] as const;

type Choice = keyof typeof TEXT.divisions;

/** What the rows can be divided by. */
const DIVISIONS: Record<Choice, readonly Division[]> = {
  users: ['user'],
  teams: ['team'],
  notebooks: ['user', 'notebook'],
  days: ['day']
};
const NUMBERS = new Set(Object.keys(TEXT.usageFigures));

interface IUsageProps {
  state: IState;
  service: Service;
}

/** GPU time, memory, energy and cost over days: of all users, or, for viewers who may not see that, their own. */
export function Usage({ state, service }: IUsageProps): JSX.Element {
  const [choice, setChoice] = React.useState<Choice>(
    state.viewer.sees_all ? 'users' : 'notebooks'
  );
  const [days, setDays] = React.useState<number>(7);
  const found = useUsage(service, choice, days);
  return (
    <section className="panel">
      <div className="bar">
        <select
          aria-label={TEXT.dividedBy}
          value={choice}
          onChange={event => setChoice(event.target.value as Choice)}
        >
          {Object.entries(TEXT.divisions).map(([name, text]) => (
            <option key={name} value={name}>
              {text}
            </option>
          ))}
        </select>
        <select
          aria-label={TEXT.period}
          value={days}
          onChange={event => setDays(Number(event.target.value))}
        >
          {PERIODS.map(number => (
            <option key={number} value={number}>
              {TEXT.lastDays(number)}
            </option>
          ))}
        </select>
      </div>
      {found && <Uses found={found} choice={choice} />}
    </section>
  );
}

/** The usage reports of all nodes; null until they have arrived. */
function useUsage(
  service: Service,
  choice: Choice,
  days: number
): ReadonlyMap<string, INodeUsage> | null {
  const [found, setFound] = React.useState<ReadonlyMap<
    string,
    INodeUsage
  > | null>(null);
  React.useEffect(() => {
    let isWanted = true;
    setFound(null);
    const since = Date.now() / 1000 - days * DAY;
    void service.usage(DIVISIONS[choice], since).then(usage => {
      if (isWanted) {
        setFound(usage);
      }
    });
    return () => {
      isWanted = false;
    };
  }, [service, choice, days]);
  return found;
}

function Uses(props: {
  found: ReadonlyMap<string, INodeUsage>;
  choice: Choice;
}): JSX.Element {
  const { found, choice } = props;
  const reports = [...found.values()].flatMap(({ report }) => report ?? []);
  const silent = [...found].flatMap(([name, { report, refused }]) =>
    report || refused ? [] : name
  );
  const keys = DIVISIONS[choice];
  const rows = together(reports, keys);
  const currency = currencyOf(reports);
  const { usageKeys, usageFigures } = TEXT;
  const { cost, disk_bytes, ...figures } = usageFigures;
  const hasDisk = rows.some(row => row.disk_byte_seconds);
  const columns = {
    ...Object.fromEntries(keys.map(key => [key, usageKeys[key]])),
    ...figures,
    ...(hasDisk && { disk_bytes }),
    ...(currency !== null && { cost })
  };
  const idle = reports.reduce((sum, each) => sum + (each.idle_energy ?? 0), 0);
  return (
    <>
      {silent.length > 0 && <p className="notice">{TEXT.noUsage(silent)}</p>}
      {[...found].map(
        ([name, { refused }]) =>
          refused && (
            <p className="notice" key={name}>
              {TEXT.usageRefused(name, refused)}
            </p>
          )
      )}
      {rows.length > 0 ? (
        <Table
          caption={TEXT.divisions[choice]}
          className="usage"
          columns={columns}
          numbers={NUMBERS}
        >
          {rows.map(row => (
            <tr role="row" key={keyOf(row, keys)}>
              {keys.map(key => (
                <td role="cell" key={key} data-label={usageKeys[key]}>
                  {nameIn(row, key)}
                </td>
              ))}
              <Figure label={figures.seconds} text={hours(row.seconds)} />
              <Figure
                label={figures.gpu_bytes}
                text={(row.gpu_byte_seconds / GIB_HOUR).toFixed(2)}
              />
              <Figure
                label={figures.host_bytes}
                text={(row.host_byte_seconds / GIB_HOUR).toFixed(2)}
              />
              <Figure label={figures.moved} text={size(row.moved)} />
              <Figure
                label={figures.energy}
                text={row.energy === null ? TEXT.notMeasured : kwh(row.energy)}
              />
              {hasDisk && (
                <Figure
                  label={disk_bytes}
                  text={((row.disk_byte_seconds ?? 0) / GIB_HOUR).toFixed(2)}
                />
              )}
              {currency !== null && (
                <Figure label={cost} text={money(row.cost ?? 0, currency)} />
              )}
            </tr>
          ))}
        </Table>
      ) : (
        <p className="empty">{TEXT.noUse}</p>
      )}
      {idle > 0 && <p className="quiet">{TEXT.idleEnergy(kwh(idle))}</p>}
    </>
  );
}

function Figure({ label, text }: { label: string; text: string }): JSX.Element {
  return (
    <td role="cell" className="number" data-label={label}>
      {text}
    </td>
  );
}

function nameIn(row: IUse, key: Division): string {
  const name = row[key] ?? '';
  if (key === 'notebook') {
    return name ? nameOf(name) : TEXT.otherNotebooks;
  }
  return name ? isolate(name) : TEXT.noTeam;
}

function keyOf(row: IUse, keys: readonly Division[]): string {
  return JSON.stringify(keys.map(key => row[key]));
}

/** The rows of all nodes, added up; the largest GPU times first, or in the order of the days. */
function together(
  reports: readonly IUsage[],
  keys: readonly Division[]
): IUse[] {
  const found = new Map<string, IUse>();
  for (const row of reports.flatMap(report => report.rows)) {
    const key = keyOf(row, keys);
    const known = found.get(key);
    found.set(key, known ? sumOf(known, row) : row);
  }
  return [...found.values()].sort(
    (a, b) => (a.day ?? '').localeCompare(b.day ?? '') || b.seconds - a.seconds
  );
}

function sumOf(one: IUse, other: IUse): IUse {
  return {
    ...one,
    seconds: one.seconds + other.seconds,
    gpu_byte_seconds: one.gpu_byte_seconds + other.gpu_byte_seconds,
    host_byte_seconds: one.host_byte_seconds + other.host_byte_seconds,
    disk_byte_seconds:
      (one.disk_byte_seconds ?? 0) + (other.disk_byte_seconds ?? 0),
    moved: one.moved + other.moved,
    energy:
      one.energy === null && other.energy === null
        ? null
        : (one.energy ?? 0) + (other.energy ?? 0),
    cost: (one.cost ?? 0) + (other.cost ?? 0)
  };
}

/** The currency of all nodes; null: there are no prices, or they are in several currencies. */
function currencyOf(reports: readonly IUsage[]): string | null {
  const found = new Set(
    reports.flatMap(({ prices }) => prices?.currency ?? [])
  );
  const [currency = null] = found;
  return found.size === 1 ? currency : null;
}
