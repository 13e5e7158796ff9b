// SPDX-License-Identifier: BSD-3-Clause
import { Notification } from '@jupyterlab/apputils';
import { NotebookActions } from '@jupyterlab/notebook';
import { act, screen } from '@testing-library/react';
import { MessageLoop } from '@lumino/messaging';
import type { Signal } from '@lumino/signaling';

import { FakeCommands } from '../../__tests__/commands';
import {
  FakeModel,
  makeGroup,
  makeStatus,
  plain,
  trans
} from '../../__tests__/fixtures';
import {
  FakeDocuments,
  FakePanel,
  makeTracker
} from '../../__tests__/notebooks';
import type { IGroup } from '../../core/status';
import { NotebookParts } from '../parts';
import { ToolbarSlots } from '../slot';

export let model: FakeModel;

export let commands: FakeCommands;

export let parts: NotebookParts;

export let panels: FakePanel[];

export let slots: ToolbarSlots;

export let hidden = false;

/** Open notebooks of these kernels, with a cell of the message `<kernel>-cell` each. */
export async function open(...kernels: string[]): Promise<FakePanel> {
  parts = new NotebookParts({
    model,
    documents: new FakeDocuments(model),
    commands,
    trans,
    slots
  });
  await settle(() => {
    panels = kernels.map(kernel => new FakePanel(kernel));
    for (const panel of panels) {
      panel.toolbar.insertItem(0, 'gpushare', slots.add(panel.asPanel));
    }
    panels.forEach((panel, index) =>
      panel.execute(0, `${kernels[index]}-cell`)
    );
    parts.connect(makeTracker(...panels));
  });
  return panels[0] as FakePanel;
}

/** Do something, and let be drawn what is due then. */
export async function settle(
  something: () => void = () => undefined
): Promise<void> {
  await act(async () => {
    something();
    for (let round = 0; round < 3; round++) {
      MessageLoop.flush();
      await Promise.resolve();
    }
  });
}

export async function report(...groups: IGroup[]): Promise<void> {
  await settle(() => (model.status = makeStatus(...groups)));
}

/** Let seconds pass, for the scheduler too. */
export async function pass(seconds: number): Promise<void> {
  model.now += seconds;
  await settle(() => jest.advanceTimersByTime(1000 * seconds));
}

/** JupyterLab's signals when a cell is scheduled or has run. */
export function run(
  panel: FakePanel,
  index: number,
  signal: 'executionScheduled' | 'executed' = 'executionScheduled'
): Promise<void> {
  const emitter = NotebookActions[signal] as Signal<unknown, unknown>;
  return settle(() =>
    emitter.emit({ notebook: panel.content, cell: panel.cell(index) })
  );
}

export async function show(visible: boolean): Promise<void> {
  hidden = !visible;
  await settle(() => document.dispatchEvent(new Event('visibilitychange')));
}

export const holder = (changes: Partial<IGroup> = {}): IGroup =>
  makeGroup('train', { state: 'running', ...changes });

export const CELL = { msg_id: 'plots-cell', since: 98, waited: 2.1, ran: 0.1 };

export const strip = (): HTMLElement | null =>
  screen.queryByRole('group', { name: 'GPU' });

export const text = (element: HTMLElement | null): string =>
  plain(element?.querySelector('.jp-GpuShare-stripText')?.textContent ?? '');

export const announced = (): string =>
  plain(strip()?.querySelector('[role=status]')?.textContent ?? '');

export const toasts = (): string[] =>
  Notification.manager.notifications.map(({ message }) => plain(message));

/** Give each test of a file a page of its own. */
export function withPage(): void {
  beforeEach(() => {
    jest.useFakeTimers({ doNotFake: ['queueMicrotask'] });
    hidden = false;
    // Jupyter's own documents warn of themselves when they are made.
    jest.spyOn(console, 'warn').mockImplementation();
    jest.spyOn(document, 'hidden', 'get').mockImplementation(() => hidden);
    model = new FakeModel();
    commands = new FakeCommands(model);
    panels = [];
    slots = new ToolbarSlots();
  });

  afterEach(async () => {
    await settle(() => {
      parts.dispose();
      panels.forEach(panel => panel.dispose());
    });
    Notification.dismiss();
    document.body.replaceChildren();
    jest.restoreAllMocks();
    jest.useRealTimers();
  });
}
