// SPDX-License-Identifier: BSD-3-Clause
import { act, fireEvent, screen } from '@testing-library/react';
import { CommandRegistry } from '@lumino/commands';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import axe from 'axe-core';

import { FakeDocuments } from '../../__tests__/notebooks';
import type { IGroup, IStatus } from '../../core/status';
import { StatusItem } from '../item';
import type { IPreferences } from '../../tokens';
import { CommandIds } from '../../tokens';
import {
  FakeModel,
  makeGroup,
  makeHibernated,
  makeStatus,
  makeWaiting,
  makeWaking,
  makePreferences,
  plain,
  PREFERENCES,
  trans
} from '../../__tests__/fixtures';

let model: FakeModel;
let documents: FakeDocuments;
let item: StatusItem;
let opened: number;

beforeEach(async () => {
  jest.useFakeTimers();
  opened = 0;
  model = new FakeModel();
  documents = new FakeDocuments(model, 'plots');
  const commands = new CommandRegistry();
  commands.addCommand(CommandIds.openPanel, { execute: () => void opened++ });
  item = new StatusItem({ model, documents, commands, trans });
  await settle(() => Widget.attach(item, document.body));
});

afterEach(async () => {
  await settle(() => item.dispose());
  jest.useRealTimers();
});

async function settle(something: () => void): Promise<void> {
  await act(async () => {
    something();
    MessageLoop.flush();
    await Promise.resolve();
  });
}

const report = (
  groups: IGroup[],
  changes: Partial<IStatus> = {}
): Promise<void> =>
  settle(() => (model.status = { ...makeStatus(...groups), ...changes }));

const prefer = (statusBar: IPreferences['statusBar']): Promise<void> =>
  settle(() => {
    model.preferences = { ...PREFERENCES, statusBar };
    model.changed.emit();
  });

const text = (): string => plain(item.node.textContent ?? '');

const title = (): string =>
  plain(screen.getByRole('button').getAttribute('title') ?? '');

describe('on a server without a GPU', () => {
  const none = { availability: { code: 'no_driver', params: {} }, gpus: [] };

  afterEach(() => localStorage.clear());

  /** A new page. */
  const reload = (): Promise<void> =>
    settle(() => {
      item.dispose();
      const commands = new CommandRegistry();
      item = new StatusItem({ model, documents, commands, trans });
      Widget.attach(item, document.body);
    });

  it('becomes quiet after a day while JupyterLab stays open', async () => {
    await report([], none);
    jest.setSystemTime(Date.now() + 23 * 3_600_000);
    await report([], none);
    expect(item.wanted).toBe(true);
    // A lost connection does not restart the day.
    await report([], {
      ...none,
      availability: { code: 'server_unreachable', params: {} }
    });
    const changes = jest.fn();
    item.wantedChanged.connect(changes);
    jest.setSystemTime(Date.now() + 2 * 3_600_000);
    await report([], none);
    expect(item.wanted).toBe(false);
    expect(changes).toHaveBeenCalledTimes(1);
    expect(text()).toBe('');
  });

  it('shows it for a day after the first page load', async () => {
    await report([], none);
    expect(text()).toBe('GPU: not shared');
    jest.setSystemTime(Date.now() + 23 * 3_600_000);
    await reload();
    expect(item.wanted).toBe(true);
    jest.setSystemTime(Date.now() + 2 * 3_600_000);
    await reload();
    expect(item.wanted).toBe(false);
    expect(text()).toBe('');
  });

  it('shows the state again once there is a GPU', async () => {
    localStorage.setItem('jupyter-gpushare:no-gpu-since', '1');
    await report([], none);
    expect(item.wanted).toBe(false);
    await report([makeGroup('plots')]);
    expect(item.wanted).toBe(true);
    expect(text()).toContain('idle');
    // The next time counts from its beginning.
    await report([], none);
    expect(item.wanted).toBe(true);
  });
});

it('is empty before the first status', () => {
  expect(text()).toBe('');
});

it.each<[string, Partial<IGroup>]>([
  ['GPU: running', { state: 'running' }],
  ['GPU: restoring', { state: 'restoring' }],
  ['GPU: idle, 5 GiB on the GPU', { state: 'idle' }],
  ['GPU: idle', { state: 'idle', gpus: [] }],
  ['GPU: hibernated', makeHibernated('plots')],
  ['GPU: waking, about 0.7 s', makeWaking('plots')],
  [
    'GPU: frozen, 5 GiB on the GPU',
    { preferences: makePreferences({ frozen: true }) }
  ]
])('shows of the active notebook: %s', async (expected, changes) => {
  await report([makeGroup('plots', changes), makeWaiting('train', 1)]);
  expect(text()).toBe(expected);
});

it('shows the position in the queue and counts down', async () => {
  await report([
    makeWaiting('plots', 22, { estimate: { seconds: 12, low: 8, high: 20 } }),
    makeGroup('train', { state: 'running' })
  ]);
  expect(text()).toBe('GPU: waiting (22nd, about 12 s)');
  expect(title()).toContain("needs 15 GiB more; train's turn ends within 3 s");
  model.now += 2;
  await settle(() => jest.advanceTimersByTime(1000));
  expect(text()).toBe('GPU: waiting (22nd, about 10 s)');
});

it('explains that the active notebook is hibernated', async () => {
  await report([makeHibernated('plots')]);
  expect(title()).toContain('Its next cell wakes it in about 1.2 s');
  await report([makeWaking('plots')]);
  expect(title()).toContain('waking up from hibernation');
});

it('shows the state of the GPUs if the active notebook has not used them', async () => {
  await report([]);
  expect(text()).toBe('GPU: idle');
  await report([
    makeGroup('a', { state: 'running' }),
    makeGroup('b', { state: 'running' }),
    makeWaiting('c', 1)
  ]);
  expect(text()).toBe('GPU: 2 running, 1 waiting, 15 GiB on the GPU');
  documents.currentKernel = 'c';
  await settle(() => documents.changed.emit());
  expect(text()).toContain('GPU: waiting (1st');
});

it('explains why nothing is shared', async () => {
  await report([], { availability: { code: 'no_driver', params: {} } });
  expect(text()).toBe('GPU: not shared');
  expect(title()).toBe('No NVIDIA driver was found');
  await report([], {
    availability: { code: 'server_unreachable', params: {} }
  });
  expect(text()).toBe('GPU: connection lost');
  await report([], {
    unshared: [
      { kernel_id: 'plots', code: 'started_before', params: {}, sessions: [] }
    ]
  });
  expect(text()).toBe('GPU: not shared');
  expect(title()).toContain('Restart the kernel');
});

it("follows the user's settings", async () => {
  await report([makeGroup('plots')]);
  await prefer('state');
  expect(text()).toBe('GPU: idle');
  const changes = jest.fn();
  item.wantedChanged.connect(changes);
  await prefer('none');
  expect(item.wanted).toBe(false);
  expect(item.node.textContent).toBe('');
  await prefer('state');
  expect(item.wanted).toBe(true);
  expect(changes).toHaveBeenCalledTimes(2);
});

it('opens the panel with the pointer or the keyboard', async () => {
  await report([makeGroup('plots')]);
  const button = screen.getByRole('button');
  expect(button.tabIndex).toBe(0);
  fireEvent.click(button);
  fireEvent.keyDown(button, { key: 'Enter' });
  fireEvent.keyDown(button, { key: ' ' });
  fireEvent.keyDown(button, { key: 'a' });
  expect(opened).toBe(3);
});

it('keeps the model active only while it is visible', async () => {
  expect(model.looks).toHaveLength(1);
  await settle(() => item.hide());
  expect(model.looks).toHaveLength(0);
  await settle(() => item.show());
  expect(model.looks).toHaveLength(1);
  await settle(() => Widget.detach(item));
  expect(model.looks).toHaveLength(0);
});

it('has no accessibility problems', async () => {
  await report([makeGroup('plots')]);
  jest.useRealTimers();
  const { violations } = await axe.run(item.node, {
    // There are no colours without a browser, and it is no page.
    rules: { 'color-contrast': { enabled: false }, region: { enabled: false } }
  });
  expect(violations).toEqual([]);
});
