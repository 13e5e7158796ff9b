// SPDX-License-Identifier: BSD-3-Clause
import { Notification } from '@jupyterlab/apputils';
import { NotebookActions } from '@jupyterlab/notebook';
import {
  act,
  fireEvent,
  screen,
  waitFor,
  within
} from '@testing-library/react';
import { MessageLoop } from '@lumino/messaging';
import type { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import axe from 'axe-core';

import { NotebookParts } from '../parts';
import { ToolbarSlots } from '../slot';
import type { IGroup } from '../../core/status';
import { CommandIds } from '../../tokens';
import { FakeCommands } from '../../__tests__/commands';
import {
  explained,
  FakeModel,
  makeGroup,
  makeHibernated,
  makeStatus,
  makeWaiting,
  makeWaking,
  makeWishes,
  plain,
  PREFERENCES,
  trans
} from '../../__tests__/fixtures';
import {
  FakeDocuments,
  FakePanel,
  makeTracker
} from '../../__tests__/notebooks';

let model: FakeModel;
let commands: FakeCommands;
let parts: NotebookParts;
let panels: FakePanel[];
let slots: ToolbarSlots;
let hidden = false;

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

/** Open notebooks of these kernels, with a cell of the message `<kernel>-cell` each. */
async function open(...kernels: string[]): Promise<FakePanel> {
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
async function settle(something: () => void = () => undefined): Promise<void> {
  await act(async () => {
    something();
    for (let round = 0; round < 3; round++) {
      MessageLoop.flush();
      await Promise.resolve();
    }
  });
}

async function tell(...groups: IGroup[]): Promise<void> {
  await settle(() => (model.status = makeStatus(...groups)));
}

/** Let seconds pass, for the scheduler too. */
async function pass(seconds: number): Promise<void> {
  model.now += seconds;
  await settle(() => jest.advanceTimersByTime(1000 * seconds));
}

/** What JupyterLab says when a cell is about to run, or has run. */
function run(
  panel: FakePanel,
  index: number,
  signal: 'executionScheduled' | 'executed' = 'executionScheduled'
): Promise<void> {
  const emitter = NotebookActions[signal] as Signal<unknown, unknown>;
  return settle(() =>
    emitter.emit({ notebook: panel.content, cell: panel.cell(index) })
  );
}

async function show(visible: boolean): Promise<void> {
  hidden = !visible;
  await settle(() => document.dispatchEvent(new Event('visibilitychange')));
}

const holder = (changes: Partial<IGroup> = {}): IGroup =>
  makeGroup('train', { state: 'running', ...changes });

const CELL = { msg_id: 'plots-cell', since: 98, waited: 2.1, ran: 0.1 };

const strip = (): HTMLElement | null =>
  screen.queryByRole('group', { name: 'GPU' });

const text = (element: HTMLElement | null): string =>
  plain(element?.querySelector('.jp-GpuShare-stripText')?.textContent ?? '');

const announced = (): string =>
  plain(strip()?.querySelector('[role=status]')?.textContent ?? '');

const toasts = (): string[] =>
  Notification.manager.notifications.map(({ message }) => plain(message));

describe('The strip', () => {
  it('says in the waiting cell who has the GPU, and what one can do', async () => {
    const panel = await open('plots');
    await tell(makeWaiting('plots', 2), holder());
    expect(text(strip())).toBe('2nd, about 4 s: train');
    expect(panel.cell(0).node.contains(strip())).toBe(true);
    expect(announced()).toBe('This cell waits for the GPU. train has it.');
    for (const name of ['Open', 'Make background']) {
      fireEvent.click(
        within(strip() as HTMLElement).getByRole('button', { name })
      );
    }
    expect(commands.executed).toEqual([
      [CommandIds.goTo, { group: 'train' }],
      [CommandIds.setPriority, { group: 'train', priority: 'background' }]
    ]);
  });

  it('counts down without a word of the server, and says nothing aloud', async () => {
    await open('plots');
    await tell(makeWaiting('plots', 2), holder());
    const before = announced();
    await pass(2);
    expect(text(strip())).toBe('2nd, about 2 s: train');
    await pass(2);
    expect(text(strip())).toBe('2nd, any moment: train');
    expect(announced()).toBe(before);
  });

  it('names who has the GPU, not who merely comes before', async () => {
    await open('plots');
    await tell(
      makeWaiting('plots', 2, {
        estimate: null,
        reason: { code: 'behind', params: { ahead: 'first', ahead_name: '' } }
      }),
      makeWaiting('first', 1),
      holder({ sessions: [], class: 'background' })
    );
    expect(text(strip())).toBe('2nd: train');
    // Nothing of ours to open, and it is in the background already.
    expect(screen.queryByRole('button', { name: 'Open' })).toBeNull();
    expect(screen.queryByRole('button', { name: /background/ })).toBeNull();
  });

  it('says why where no notebook is the reason', async () => {
    await open('plots');
    const reason = { code: 'making_room', params: { lack: 2 ** 30 } };
    await tell(makeWaiting('plots', 1, { reason, estimate: null }));
    expect(text(strip())).toBe('1st: making room for 1 GiB');
  });

  it('keeps the focus when what one has done is offered no longer', async () => {
    await open('plots');
    await tell(makeWaiting('plots', 1), holder());
    const button = screen.getByRole('button', { name: 'Make background' });
    button.focus();
    await tell(makeWaiting('plots', 1), holder({ class: 'background' }));
    expect(button.isConnected).toBe(false);
    expect(document.activeElement).toBe(strip());
  });

  it('leaves the focus in its cell when it goes', async () => {
    const panel = await open('plots');
    await tell(makeWaiting('plots', 1), holder());
    screen.getByRole('button', { name: 'Open' }).focus();
    await tell(holder());
    expect(strip()).toBeNull();
    expect(document.activeElement).toBe(panel.cell(0).node);
  });

  it('offers to unfreeze what is frozen', async () => {
    await open('plots');
    const wishes = makeWishes({ frozen: true });
    const reason = { code: 'frozen', params: {} };
    await tell(makeWaiting('plots', 1, { wishes, reason }));
    fireEvent.click(screen.getByRole('button', { name: 'Unfreeze' }));
    expect(commands.executed).toEqual([
      [CommandIds.toggleFrozen, { group: 'plots' }]
    ]);
  });

  it('says that the notebook wakes first, and for how long still', async () => {
    await open('plots');
    const waking = makeWaking('plots');
    await tell(waking);
    expect(text(strip())).toBe('waking, about 0.7 s');
    expect(announced()).toBe('This cell waits until its notebook is awake.');
    const reason = { code: 'making_room', params: { lack: 2 ** 30 } };
    await tell({ ...waking, reason });
    expect(text(strip())).toBe('waking: making room for 1 GiB');
    await tell(makeGroup('plots', { state: 'running', cell: CELL }));
    expect(text(strip())).toBe('waited 2.1 s, running');
  });

  it('does not flicker for a short wait, and comes after 0.3 s', async () => {
    await open('plots');
    const cell = { msg_id: 'plots-cell', since: 99.9, waited: 0.1, ran: 0 };
    await tell(makeWaiting('plots', 1, { cell }), holder());
    expect(strip()).toBeNull();
    await pass(0.25);
    expect(text(strip())).toBe('1st, about 4 s: train');
  });

  it('turns into how the cell fared, until the cell runs again', async () => {
    const panel = await open('plots');
    await tell(makeWaiting('plots', 1), holder());
    await tell(makeGroup('plots', { state: 'running', cell: CELL }));
    expect(text(strip())).toBe('waited 2.1 s, running');
    expect(announced()).toBe('This cell has the GPU.');
    const last_cell = { msg_id: 'plots-cell', waited: 2.1, ran: 0.8 };
    await tell(makeGroup('plots', { last_cell }));
    expect(text(strip())).toBe('waited 2.1 s, ran 0.8 s');
    await tell(makeGroup('plots', { last_cell, state: 'running' }));
    expect(text(strip())).toBe('waited 2.1 s, ran 0.8 s');

    await run(panel, 1);
    expect(strip()).not.toBeNull();
    await run(panel, 0);
    expect(strip()).toBeNull();
    await tell(makeGroup('plots', { last_cell }));
    expect(strip()).toBeNull();
  });

  it('stays while the cell waits, even if one has asked to run it again', async () => {
    const panel = await open('plots');
    await tell(makeWaiting('plots', 1), holder());
    await run(panel, 0);
    await settle(() => panel.execute(0, 'again'));
    await tell(makeWaiting('plots', 2), holder());
    expect(text(strip())).toBe('2nd, about 4 s: train');
  });

  it('goes after some minutes', async () => {
    await open('plots');
    const last_cell = { msg_id: 'plots-cell', waited: 0.25, ran: 0.8 };
    await tell(makeGroup('plots', { last_cell }));
    expect(text(strip())).toBe('waited 0.3 s, ran 0.8 s');
    await pass(299);
    expect(strip()).not.toBeNull();
    await pass(2);
    expect(strip()).toBeNull();
  });

  it('tells nothing of a cell that hardly waited', async () => {
    await open('plots');
    const last_cell = { msg_id: 'plots-cell', waited: 0.2, ran: 0.8 };
    await tell(makeGroup('plots', { last_cell }));
    expect(strip()).toBeNull();
  });

  it('tells what is known when later cells came between two messages', async () => {
    const panel = await open('plots');
    panel.execute(1, 'next');
    await tell(makeWaiting('plots', 1), holder());
    const last_cell = { msg_id: 'next', waited: 0, ran: 0.1 };
    await tell(makeGroup('plots', { last_cell }));
    expect(text(strip())).toBe('waited 2.0 s');
  });

  it('is of the cell that waits, in the notebook that waits', async () => {
    const panel = await open('plots', 'train');
    panel.execute(1, 'second');
    const cell = { msg_id: 'second', since: 98, waited: 2, ran: 0 };
    await tell(makeWaiting('plots', 1, { cell }), holder());
    expect(screen.getAllByRole('group', { name: 'GPU' })).toHaveLength(1);
    expect(panel.cell(1).node.contains(strip())).toBe(true);
  });

  it('is nowhere if another page runs the cell', async () => {
    await open('plots');
    const cell = { msg_id: 'of another page', since: 98, waited: 2, ran: 0 };
    await tell(makeWaiting('plots', 1, { cell }), holder());
    expect(strip()).toBeNull();
  });

  describe('of a cell that the server runs', () => {
    const REMOTE = { msg_id: 'server', since: 98, waited: 2, ran: 0 };
    const waiting = (): IGroup => makeWaiting('plots', 1, { cell: REMOTE });
    const stripIndex = (panel: FakePanel): number =>
      panel.content.widgets.findIndex(({ node }) => node.contains(strip()));

    it('is in the cell that this page asked the server to run', async () => {
      const panel = await open('plots');
      await run(panel, 1);
      panel.broadcast('server', 'step(1)');
      await tell(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
      await run(panel, 1, 'executed');
      const last_cell = { msg_id: 'server', waited: 2.1, ran: 0.8 };
      await tell(makeGroup('plots', { last_cell }));
      expect(text(strip())).toBe('waited 2.1 s, ran 0.8 s');
      expect(stripIndex(panel)).toBe(1);
    });

    it('is in the cell that the document marks as running', async () => {
      const panel = await open('plots');
      panel.mark(0);
      panel.mark(1);
      panel.broadcast('server', 'step(1)');
      await tell(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
    });

    it('comes when the mark is later than the code', async () => {
      const panel = await open('plots');
      panel.broadcast('server', 'step(1)');
      await tell(waiting(), holder());
      expect(strip()).toBeNull();
      panel.mark(1);
      await pass(1);
      expect(stripIndex(panel)).toBe(1);
    });

    it('is in the cell that was scheduled first if several have the same source', async () => {
      const panel = await open('plots');
      panel.cell(1).model.sharedModel.setSource('step(0)');
      await run(panel, 1);
      await run(panel, 0);
      panel.broadcast('server', 'step(0)');
      await tell(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
    });

    it('is there after the page is loaded again, if one cell runs', async () => {
      const panel = await open('plots');
      panel.mark(1);
      await tell(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
    });

    it('is nowhere if the page cannot know which of several runs', async () => {
      const panel = await open('plots');
      await settle(() => {
        panel.content.model?.sharedModel.insertCell(2, { cell_type: 'code' });
      });
      panel.mark(1);
      panel.mark(2);
      await tell(waiting(), holder());
      expect(strip()).toBeNull();
    });

    it('is nowhere if a console runs what is in a cell', async () => {
      const panel = await open('plots');
      panel.broadcast('server', 'step(1)');
      await tell(waiting(), holder());
      expect(strip()).toBeNull();
      // This page's own request is queued behind it.
      await run(panel, 1);
      panel.mark(1);
      panel.execute(1, 'own');
      await pass(1);
      expect(strip()).toBeNull();
    });

    it('is nowhere if other code runs while a cell is marked', async () => {
      const panel = await open('plots');
      panel.mark(1);
      panel.broadcast('server', 'train()');
      await tell(waiting(), holder());
      expect(strip()).toBeNull();
    });
  });

  it('goes with its cell, and with the kernel', async () => {
    const panel = await open('plots');
    await tell(makeWaiting('plots', 1), holder());
    await tell(holder());
    expect(strip()).toBeNull();
    await tell(makeWaiting('plots', 1), holder());
    await settle(() => panel.content.model?.sharedModel.deleteCell(0));
    expect(strip()).toBeNull();
    await tell(makeWaiting('plots', 1), holder());
    expect(strip()).toBeNull();
  });

  it('is never in the file', async () => {
    const panel = await open('plots');
    const before = panel.saved;
    await tell(makeWaiting('plots', 1), holder());
    expect(strip()).not.toBeNull();
    expect(panel.saved).toBe(before);
    const last_cell = { msg_id: 'plots-cell', waited: 2.1, ran: 0.8 };
    await tell(makeGroup('plots', { last_cell }));
    expect(strip()).not.toBeNull();
    expect(panel.saved).toBe(before);
    expect(panel.content.model?.dirty).toBe(false);
  });

  it('survives that its cell leaves the window and comes back, and is not said again', async () => {
    const panel = await open('plots');
    await tell(makeWaiting('plots', 2), holder());
    const said = jest.fn();
    const observer = new MutationObserver(records => {
      for (const { target } of records) {
        const element =
          target instanceof Element ? target : target.parentElement;
        if (element?.matches('[role=status]')) {
          said();
        }
      }
    });
    observer.observe(document.body, {
      characterData: true,
      childList: true,
      subtree: true
    });
    const { parentElement } = panel.node;
    await settle(() => {
      Widget.detach(panel);
      Widget.attach(panel, parentElement as HTMLElement);
    });
    expect(text(strip())).toBe('2nd, about 4 s: train');
    expect(announced()).toBe('This cell waits for the GPU. train has it.');
    expect(said).not.toHaveBeenCalled();
    await tell(makeGroup('plots', { state: 'moving', cell: CELL }));
    expect(said).toHaveBeenCalled();
    observer.disconnect();
  });

  it('is drawn only where the page is seen', async () => {
    await open('plots');
    await show(false);
    await tell(makeWaiting('plots', 2), holder());
    expect(strip()).toBeNull();
    await show(true);
    expect(text(strip())).toBe('2nd, about 4 s: train');
  });
});

describe('The chip', () => {
  const chip = (): HTMLElement | null =>
    document.querySelector<HTMLElement>('.jp-GpuShare-chip');

  it('is not there while the kernel has not used the GPU and all is well', async () => {
    await open('plots');
    await tell(holder());
    expect(chip()).toBeNull();
  });

  it.each<[string, Partial<IGroup>]>([
    ['GPU: running', { state: 'running' }],
    ['GPU: idle', { state: 'idle' }],
    ['GPU: idle lease', { state: 'held' }],
    [
      'GPU: idle lease',
      { state: 'held', cell: { msg_id: 'c', since: 90, waited: 0, ran: 1 } }
    ],
    ['GPU: moving in', { state: 'moving' }],
    ['GPU: frozen', { wishes: makeWishes({ frozen: true }) }]
  ])('says %s', async (expected, changes) => {
    await open('plots');
    await tell(makeGroup('plots', changes), holder());
    expect(plain(chip()?.textContent ?? '')).toBe(expected);
    expect(chip()?.title).toContain('5 GiB resident'.replace(' ', '\u00a0'));
  });

  it('says the place in the queue, and why and how long when pointed at', async () => {
    await open('plots');
    await tell(makeWaiting('plots', 2), holder());
    expect(plain(chip()?.textContent ?? '')).toBe('GPU: waiting, 2nd');
    expect(plain(chip()?.title ?? '').split('\n')).toEqual([
      '2nd, about 4 s',
      'Nine of ten such waits end in 2–9 s.',
      'needs 60 GiB, lacks 15 GiB: train yields within 3 s',
      '5 GiB resident, 2 GiB in host memory'
    ]);
  });

  it('says that its notebook became background by itself, and why', async () => {
    await open('plots');
    const cell = { msg_id: 'plots-cell', since: 88, waited: 0, ran: 12 };
    await tell(
      makeGroup('plots', { state: 'running', cell, class: 'background' }),
      makeWaiting('eda', 1)
    );
    expect(chip()?.textContent).toBe('GPU: running, background');
    expect(
      plain(chip()?.title ?? '')
        .split('\n')
        .pop()
    ).toBe(
      'background: its cell has had 12 s of GPU time; the next cell is interactive again'
    );
  });

  it.each<[string, string, Partial<IGroup>]>([
    ['alone', 'GPU: running', { state: 'running' }],
    ['idle', 'GPU: idle', { state: 'idle' }],
    [
      'alone as somebody asked',
      'GPU: running, background',
      { state: 'running', wishes: makeWishes({ priority: 'background' }) }
    ]
  ])(
    'says that its notebook is in the background only where it matters: %s',
    async (_, expected, changes) => {
      await open('plots');
      await tell(
        makeGroup('plots', { class: 'background', ...changes }),
        makeGroup('eda')
      );
      expect(chip()?.textContent).toBe(expected);
      expect(chip()?.title.includes('background')).toBe(
        expected.includes('background')
      );
    }
  );

  it('takes no room until there is something to say', async () => {
    const panel = await open('plots');
    expect(slots.of(panel.asPanel)?.isHidden).toBe(true);
    await tell(makeGroup('plots'));
    expect(slots.of(panel.asPanel)?.isHidden).toBe(false);
  });

  it('says that its notebook is hibernated, and that it wakes', async () => {
    const panel = await open('plots');
    await tell(makeHibernated('plots'));
    const chip = (): HTMLElement =>
      within(panel.toolbar.node).getByRole('button');
    expect(chip().textContent).toBe('GPU: hibernated');
    expect(chip().title).toContain('nothing of it is on the GPU');
    expect(chip().dataset['mark']).toBe('hibernated');
    await tell(makeWaking('plots'));
    expect(chip().textContent).toBe('GPU: waking');
  });

  it('and the strip say which rule put whom before it', async () => {
    const name = 'train.ipynb';
    model.explanation = explained({ group: 'train', name, code: 'came' });
    await open('plots');
    await tell(makeWaiting('plots', 2), holder());
    const line = strip()?.querySelector<HTMLElement>('[tabindex]');
    for (const part of [chip(), line]) {
      await settle(() => fireEvent.mouseEnter(part as HTMLElement));
      await waitFor(() =>
        expect(part?.title.split('\n').pop()).toBe(
          'train comes first: it has waited for longer'
        )
      );
      await settle(() => fireEvent.mouseLeave(part as HTMLElement));
      expect(part?.title).not.toContain('comes first');
    }
  });

  it('says so if the kernel does not share', async () => {
    await open('plots');
    const unshared = [
      { kernel_id: 'plots', code: 'started_before', params: {}, sessions: [] }
    ];
    await settle(() => (model.status = { ...makeStatus(), unshared }));
    expect(chip()?.textContent).toBe('GPU: not shared');
    expect(chip()?.title).toContain('Restart the kernel');
    fireEvent.click(chip() as HTMLElement);
    expect(commands.executed).toEqual([[CommandIds.openPanel, {}]]);
  });

  it('says nothing of sharing where there is no GPU', async () => {
    await open('plots');
    model.status = {
      ...makeStatus(),
      availability: { code: 'no_driver', params: {} },
      unshared: [
        { kernel_id: 'plots', code: 'opted_out', params: {}, sessions: [] }
      ]
    };
    await settle();
    expect(chip()).toBeNull();
  });

  it('opens a menu of what one can do with this notebook', async () => {
    await open('plots');
    await tell(makeGroup('plots'));
    await settle(() => chip()?.focus());
    fireEvent.click(chip() as HTMLElement);
    await settle();
    const items = screen.getAllByRole('menuitem');
    expect(items.map(item => item.textContent)).toEqual([
      'Show GPU Sharing',
      'Release the GPU for Others',
      'Make Background',
      'Make Interactive',
      'Let It Be Decided Automatically',
      'Keep on the GPU',
      'Freeze',
      'Limit Its Memory…',
      'Move Its Memory to the Host',
      'Hibernate Now',
      'Wake'
    ]);
    const menu = screen.getByRole('menu').parentElement as HTMLElement;
    for (const key of [40, 40, 40, 13]) {
      fireEvent.keyDown(menu, { keyCode: key });
    }
    await settle();
    expect(commands.executed).toEqual([
      [CommandIds.setPriority, { group: 'plots', priority: 'background' }]
    ]);
    expect(document.activeElement).toBe(chip());
  });
});

describe('The notification', () => {
  const long = (changes: Partial<IGroup> = {}): IGroup =>
    makeWaiting('plots', 2, changes);

  it('comes once after the delay, names the holder and the place, and goes with the wait', async () => {
    await open('plots');
    await tell(long(), holder());
    await pass(7.5);
    expect(toasts()).toEqual([]);
    await pass(1);
    expect(toasts()).toEqual([
      'plots waits for the GPU: 2nd in the queue. train has it.'
    ]);
    const options = Notification.manager.notifications[0]?.options;
    expect(options?.autoClose).toBe(false);
    const actions = options?.actions ?? [];
    expect(actions.map(({ label }) => label)).toEqual([
      'Open panel',
      'Go to train'
    ]);
    actions.forEach(({ callback }) => callback(new MouseEvent('click')));
    expect(commands.executed).toEqual([
      [CommandIds.openPanel, {}],
      [CommandIds.goTo, { group: 'train' }]
    ]);

    // Who closes it has read it.
    Notification.dismiss();
    await pass(60);
    expect(toasts()).toEqual([]);
    await tell(long({ since: 50 }), holder());
    expect(toasts()).toHaveLength(1);
    await tell(makeGroup('plots', { state: 'moving' }));
    expect(toasts()).toEqual([]);
  });

  it('comes if it takes long to wake', async () => {
    await open('plots');
    await tell(makeWaking('plots'));
    await pass(10);
    expect(toasts()).toEqual([
      'plots is still waking: it was hibernated, and is being woken.'
    ]);
  });

  it('comes for a notebook that is not in front', async () => {
    await open('front', 'plots');
    await settle(() => panels[1]?.hide());
    await tell(long({ since: 80 }), holder());
    expect(toasts()).toHaveLength(1);
  });

  it('does not come if people want none, if no cell waits, or if they froze it', async () => {
    await open('plots');
    model.preferences = { ...PREFERENCES, notify: false };
    await tell(long({ since: 80 }), holder());
    expect(toasts()).toEqual([]);
    model.preferences = PREFERENCES;
    await tell(long({ since: 80, cell: null }), holder());
    await tell(
      long({ since: 80, wishes: makeWishes({ frozen: true }) }),
      holder()
    );
    expect(toasts()).toEqual([]);
    await tell(long({ since: 80 }), holder());
    expect(toasts()).toHaveLength(1);
  });

  it('waits at a hidden page for news of the time after', async () => {
    await open('plots');
    await show(false);
    await tell(long({ since: 80 }), holder());
    await pass(60);
    expect(toasts()).toEqual([]);
    await show(true);
    await pass(60);
    expect(toasts()).toEqual([]);
    await tell(long({ since: 80 }), holder());
    expect(toasts()).toHaveLength(1);
    // What was told stays while nothing newer is known.
    await show(false);
    await show(true);
    expect(toasts()).toHaveLength(1);
    await tell(holder());
    expect(toasts()).toEqual([]);
  });

  it('is no matter of what was known before the page was hidden', async () => {
    await open('plots');
    await tell(long(), holder());
    await show(false);
    await pass(60);
    await show(true);
    expect(toasts()).toEqual([]);
    await tell(long(), holder());
    await pass(9);
    expect(toasts()).toHaveLength(1);
  });

  it('goes with the notebook', async () => {
    const panel = await open('plots');
    await tell(long({ since: 80 }), holder());
    await settle(() => panel.dispose());
    expect(toasts()).toEqual([]);
  });

  it('is short enough for JupyterLab however long the names are', async () => {
    await open('plots');
    const path = `${'a_very_long_name_'.repeat(10)}.ipynb`;
    await tell(
      long({ since: 80, sessions: [], name: path }),
      holder({ sessions: [], name: path })
    );
    expect(toasts()[0]?.length).toBeLessThanOrEqual(140);
    expect(toasts()[0]).toMatch(/has it\.$/);
  });
});

describe('Looking', () => {
  it('is only needed while a notebook is seen or works', async () => {
    const panel = await open('plots');
    expect(model.looks).toHaveLength(1);
    await settle(() => panel.hide());
    await pass(6);
    expect(model.looks).toHaveLength(0);

    const kernel = panel.sessionContext.session?.kernel as { status: string };
    kernel.status = 'busy';
    await settle(() => panel.sessionContext.statusChanged.emit());
    expect(model.looks).toHaveLength(1);
    kernel.status = 'idle';
    await settle(() => panel.sessionContext.statusChanged.emit());
    await pass(6);
    expect(model.looks).toHaveLength(0);

    await settle(() => panel.show());
    expect(model.looks).toHaveLength(1);
    await settle(() => panel.dispose());
    await pass(6);
    expect(model.looks).toHaveLength(0);
  });
});

it('is what axe finds no fault with', async () => {
  const panel = await open('plots');
  await tell(makeWaiting('plots', 2), holder());
  jest.useRealTimers();
  for (const node of [strip(), panel.toolbar.node]) {
    const { violations } = await axe.run(node as HTMLElement, {
      // There are no colours without a browser.
      rules: { 'color-contrast': { enabled: false } }
    });
    expect(violations).toEqual([]);
  }
});
