// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';
import { act } from 'react';
import { createRoot } from 'react-dom/client';

import type { Division, IUsage, IUse } from '../messages';
import { Service } from '../service';
import { Store } from '../store';
import { Usage } from '../views/usage';

const GIB_HOUR = 3600 * 2 ** 30;

function use(changes: Partial<IUse>): IUse {
  return {
    seconds: 3600,
    gpu_byte_seconds: 2 * GIB_HOUR,
    host_byte_seconds: GIB_HOUR,
    moved: 2 ** 30,
    energy: 3.6e6,
    ...changes
  };
}

let asked: (readonly Division[])[];
/** The report of each node, null if it does not respond, or why it refuses. */
let nodes: Map<string, IUsage | string | null>;

async function shown(seesAll = true): Promise<HTMLElement> {
  const store = new Store();
  store.change({ viewer: { may_act: false, sees_all: seesAll } });
  const service = new Service(store);
  jest.spyOn(service, 'usage').mockImplementation(by => {
    asked.push(by);
    return Promise.resolve(
      new Map(
        [...nodes].map(([name, found]) => [
          name,
          typeof found === 'string'
            ? { report: null, refused: found }
            : { report: found }
        ])
      )
    );
  });
  const element = document.createElement('div');
  const root = createRoot(element);
  await act(async () => {
    root.render(<Usage state={store.state} service={service} />);
    await Promise.resolve();
  });
  return element;
}

function rows(element: HTMLElement): string[][] {
  return [...element.querySelectorAll('tr')].map(row =>
    [...row.children].map(cell => cell.textContent ?? '')
  );
}

/** Text without the marks that isolate names, and with ordinary spaces. */
function plain(cells: string[]): string[] {
  return cells.map(cell =>
    cell.replace(/[\u2066-\u2069]/g, '').replace(/\u00a0/g, ' ')
  );
}

beforeEach(() => {
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });
  asked = [];
  nodes = new Map();
});

it('adds up the nodes', async () => {
  nodes = new Map<string, IUsage | string | null>([
    [
      'gpu1',
      {
        rows: [use({ user: 'ada', cost: 1 }), use({ user: 'ben', cost: 2 })],
        prices: { currency: 'EUR' },
        idle_energy: 3.6e6
      }
    ],
    [
      'gpu2',
      {
        rows: [use({ user: 'ben', energy: null, cost: 3 })],
        prices: { currency: 'EUR' },
        idle_energy: null
      }
    ],
    ['gpu3', null],
    ['gpu4', 'This node keeps no records.']
  ]);
  const element = await shown();
  expect(asked).toEqual([['user']]);
  expect(rows(element).map(plain)).toEqual([
    [
      ...['User', 'GPU hours', 'GPU GiB-hours', 'Host GiB-hours'],
      ...['Moved', 'kWh', 'Cost']
    ],
    ['ben', '2.00', '4.00', '2.00', '2 GiB', '1.000', '5.00 EUR'],
    ['ada', '1.00', '2.00', '1.00', '1 GiB', '1.000', '1.00 EUR']
  ]);
  expect(element.textContent).toContain('did not respond: gpu3.');
  expect(element.textContent).toContain('gpu4. This node keeps no records.');
  expect(element.textContent).toContain('idle GPUs consumed 1.000 kWh');
});

it('shows what was not measured, and no cost without prices', async () => {
  nodes = new Map<string, IUsage | string | null>([
    [
      'gpu1',
      {
        rows: [use({ user: 'ada', notebook: 'a/b.ipynb', energy: null })],
        prices: null
      }
    ]
  ]);
  const element = await shown(false);
  expect(asked).toEqual([['user', 'notebook']]);
  expect(rows(element).map(plain)[1]).toEqual([
    ...['ada', 'b.ipynb', '1.00', '2.00', '1.00', '1 GiB', 'not measured']
  ]);
  expect(element.textContent).not.toContain('idle');
});

it('shows no cost in several currencies', async () => {
  nodes = new Map(
    ['EUR', 'USD'].map(currency => [
      currency,
      { rows: [use({ user: 'ada', cost: 1 })], prices: { currency } }
    ])
  );
  const element = await shown();
  expect(rows(element)[0]).not.toContain('Cost');
});

it('requests a new report for other rows', async () => {
  nodes = new Map<string, IUsage | string | null>([
    [
      'gpu1',
      {
        rows: [
          use({ day: '2026-03-17' }),
          use({ day: '2026-03-16', seconds: 1 })
        ],
        prices: null
      }
    ]
  ]);
  const element = await shown();
  const select = element.querySelector('select');
  const setValue = Object.getOwnPropertyDescriptor(
    HTMLSelectElement.prototype,
    'value'
  )?.set;
  await act(async () => {
    setValue?.call(select, 'days');
    select?.dispatchEvent(new Event('change', { bubbles: true }));
    await Promise.resolve();
  });
  expect(asked).toEqual([['user'], ['day']]);
  expect(
    plain(
      rows(element)
        .slice(1)
        .map(([day = '']) => day)
    )
  ).toEqual(['2026-03-16', '2026-03-17']);
});

it('shows that there was no usage', async () => {
  nodes = new Map<string, IUsage | string | null>([
    ['gpu1', { rows: [], prices: null }]
  ]);
  expect((await shown()).textContent).toContain('No notebook used a GPU');
});
