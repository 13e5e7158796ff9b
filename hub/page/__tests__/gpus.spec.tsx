// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';
import { act } from 'react';
import { createRoot } from 'react-dom/client';

import type { IGpu, INode, INotebook, IReport } from '../messages';
import { Service } from '../service';
import { Store } from '../store';
import { Gpus } from '../views/gpus';

const GIB = 2 ** 30;

function gpu(index: number, changes: Partial<IGpu> = {}): IGpu {
  return {
    uuid: `GPU-${index}`,
    index,
    name: 'NVIDIA H200',
    total: 8 * GIB,
    used: 0,
    utilization: 0,
    power: null,
    draining: false,
    memory: { free: 8 * GIB },
    ...changes
  };
}

function notebook(changes: Partial<INotebook> = {}): INotebook {
  return {
    id: 'a',
    name: 'train.ipynb',
    user: 'ada',
    mine: false,
    state: 'running',
    position: null,
    since: 90,
    why: '',
    preferences: '',
    on_hold: false,
    gpus: [0],
    memory: {
      resident: GIB,
      unevictable: 0,
      clean: 0,
      swapped: 0,
      shared: 0,
      disk: 0
    },
    ran: 10,
    waited: 0,
    waits: 0,
    ...changes
  };
}

function node(changes: Partial<INode & IReport>): INode {
  const report: IReport = {
    known: true,
    uptime: 100,
    simulated: false,
    maintenance: '',
    settings: null,
    host: { budget: 16 * GIB, swapped: 0 },
    gpus: [gpu(0), gpu(1)],
    processes: [],
    notebooks: [],
    users: [],
    events: [],
    actions: []
  };
  const head = { name: 'gpu1', away: false, since: 0, now: 100 };
  return { ...head, error: '', detail: '', ...report, ...changes };
}

/** The view of one node. */
function shown(found: INode): HTMLElement {
  const store = new Store();
  store.setNode(found);
  store.setNames([found.name]);
  const element = document.createElement('div');
  const context = {
    state: store.state,
    service: new Service(store),
    ask: () => undefined,
    filter: '',
    setFilter: () => undefined
  };
  act(() => {
    createRoot(element).render(<Gpus {...context} />);
  });
  return element;
}

beforeAll(() => {
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });
});

function busy(element: HTMLElement): string[] {
  return [...element.querySelectorAll('.busy')].map(
    found => found.textContent ?? ''
  );
}

it('shows no utilisation of 0% next to a running notebook', () => {
  const waiting = notebook({ id: 'b', state: 'waiting', gpus: [1] });
  const notebooks = [notebook(), waiting];
  expect(busy(shown(node({ notebooks })))).toEqual(['', '0% busy']);
  const gpus = [gpu(0, { utilization: 63 }), gpu(1, { utilization: null })];
  expect(busy(shown(node({ notebooks, gpus })))).toEqual(['63% busy', '']);
});

it('describes an unreachable node, with the technical cause as a tooltip', () => {
  const error = 'cannot connect to its Hub service; check the machine';
  const detail = 'http://gpu1:8990/: connection refused';
  const element = shown(node({ away: true, error, detail }));
  const notice = element.querySelector<HTMLElement>('.notice');
  expect(notice?.textContent).toMatch(/^Unreachable since .*: cannot connect/);
  expect(notice?.title).toBe(detail);
});

it('shows where memory is, and hides what is zero', () => {
  const memory = {
    resident: 8 * GIB,
    unevictable: 0,
    clean: 6 * GIB,
    swapped: 2 * GIB,
    shared: GIB,
    disk: 3 * GIB
  };
  const host = { budget: 16 * GIB, swapped: GIB, shared: GIB, disk: 3 * GIB };
  const element = shown(node({ notebooks: [notebook({ memory })], host }));
  const [cell] = [...element.querySelectorAll('td')].filter(
    found => found.title
  );
  const plain = (text: string): string => text.replace(/\u00a0/g, ' ');
  expect(plain(cell?.textContent ?? '')).toBe(
    '8 GiB2 GiB in host memory, 3 GiB on disk'
  );
  expect(plain(cell?.title ?? '')).toContain(
    'unchanged since its last copy: 6 GiB'
  );
  const figures = (found: HTMLElement): string[] =>
    [...found.querySelectorAll<HTMLElement>('.gpu .figures span')]
      .filter(one => !one.hidden)
      .map(one => plain(one.textContent ?? ''));
  expect(figures(element)).toContain('3 GiB on disk');
  expect(figures(element)).toContain('1 GiB saved by storing equal data once');
  const usual = shown(node({ notebooks: [notebook()] }));
  expect([...usual.querySelectorAll('td')].some(found => found.title)).toBe(
    false
  );
  expect(figures(usual).join()).not.toContain('disk');
});
