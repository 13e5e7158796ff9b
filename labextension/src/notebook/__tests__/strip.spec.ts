// SPDX-License-Identifier: BSD-3-Clause
import { Widget } from '@lumino/widgets';
import { fireEvent, screen, within } from '@testing-library/react';

import {
  makeGroup,
  makeWaiting,
  makeWaking,
  makePreferences
} from '../../__tests__/fixtures';
import { FakePanel } from '../../__tests__/notebooks';
import type { IGroup } from '../../core/status';
import { CommandIds } from '../../tokens';
import {
  announced,
  CELL,
  commands,
  holder,
  open,
  pass,
  run,
  settle,
  show,
  strip,
  report,
  text,
  withPage
} from './page';

withPage();

describe('The strip', () => {
  it('shows in the waiting cell which notebook has the GPU, with actions', async () => {
    const panel = await open('plots');
    await report(makeWaiting('plots', 2), holder());
    expect(text(strip())).toBe('2nd, about 4 s: train');
    expect(panel.cell(0).node.contains(strip())).toBe(true);
    expect(announced()).toBe(
      'This cell is waiting for the GPU. train is using it.'
    );
    for (const name of ['Go to train', 'Let others go first']) {
      fireEvent.click(
        within(strip() as HTMLElement).getByRole('button', { name })
      );
    }
    expect(commands.executed).toEqual([
      [CommandIds.goTo, { group: 'train' }],
      [CommandIds.setPriority, { group: 'train', priority: 'background' }]
    ]);
  });

  it('counts down without messages of the server or announcements', async () => {
    await open('plots');
    await report(makeWaiting('plots', 2), holder());
    const before = announced();
    await pass(2);
    expect(text(strip())).toBe('2nd, about 2 s: train');
    await pass(2);
    expect(text(strip())).toBe('2nd, any moment: train');
    expect(announced()).toBe(before);
  });

  it('names the notebook that has the GPU, not the next one in the queue', async () => {
    await open('plots');
    await report(
      makeWaiting('plots', 2, {
        estimate: null,
        reason: { code: 'behind', params: { ahead: 'first', ahead_name: '' } }
      }),
      makeWaiting('first', 1),
      holder({ sessions: [], class: 'background' })
    );
    expect(text(strip())).toBe('2nd: train');
    // Nothing of ours to open, and it is in the background already.
    expect(screen.queryByRole('button', { name: /Go to/ })).toBeNull();
    const others = { name: 'Let others go first' };
    expect(screen.queryByRole('button', others)).toBeNull();
  });

  it('explains a wait that no notebook causes', async () => {
    await open('plots');
    const reason = { code: 'making_room', params: { lack: 2 ** 30 } };
    await report(makeWaiting('plots', 1, { reason, estimate: null }));
    expect(text(strip())).toBe('1st: making room by evicting 1 GiB');
  });

  it('keeps the focus when the button of an action is removed', async () => {
    await open('plots');
    await report(makeWaiting('plots', 1), holder());
    const button = screen.getByRole('button', { name: 'Let others go first' });
    button.focus();
    await report(makeWaiting('plots', 1), holder({ class: 'background' }));
    expect(button.isConnected).toBe(false);
    expect(document.activeElement).toBe(strip());
  });

  it('leaves the focus in its cell when it is removed', async () => {
    const panel = await open('plots');
    await report(makeWaiting('plots', 1), holder());
    screen.getByRole('button', { name: 'Go to train' }).focus();
    await report(holder());
    expect(strip()).toBeNull();
    expect(document.activeElement).toBe(panel.cell(0).node);
  });

  it('offers to unfreeze a frozen notebook', async () => {
    await open('plots');
    const preferences = makePreferences({ frozen: true });
    const reason = { code: 'frozen', params: {} };
    await report(makeWaiting('plots', 1, { preferences, reason }));
    fireEvent.click(screen.getByRole('button', { name: 'Unfreeze' }));
    expect(commands.executed).toEqual([
      [CommandIds.toggleFrozen, { group: 'plots' }]
    ]);
  });

  it('shows that the notebook is waking, and how much longer that takes', async () => {
    await open('plots');
    const waking = makeWaking('plots');
    await report(waking);
    expect(text(strip())).toBe('waking, about 0.7 s');
    expect(announced()).toBe(
      'This cell is waiting for its notebook to wake up.'
    );
    const reason = { code: 'making_room', params: { lack: 2 ** 30 } };
    await report({ ...waking, reason });
    expect(text(strip())).toBe('waking: making room by evicting 1 GiB');
    await report(makeGroup('plots', { state: 'running', cell: CELL }));
    expect(text(strip())).toBe('waited 2.1 s, running');
  });

  it('is shown after 0.3 s, so that it does not flicker for short waits', async () => {
    await open('plots');
    const cell = { msg_id: 'plots-cell', since: 99.9, waited: 0.1, ran: 0 };
    await report(makeWaiting('plots', 1, { cell }), holder());
    expect(strip()).toBeNull();
    await pass(0.25);
    expect(text(strip())).toBe('1st, about 4 s: train');
  });

  it('shows how long the cell waited and ran, until it runs again', async () => {
    const panel = await open('plots');
    await report(makeWaiting('plots', 1), holder());
    await report(makeGroup('plots', { state: 'running', cell: CELL }));
    expect(text(strip())).toBe('waited 2.1 s, running');
    expect(announced()).toBe('This cell is using the GPU.');
    const last_cell = { msg_id: 'plots-cell', waited: 2.1, ran: 0.8 };
    await report(makeGroup('plots', { last_cell }));
    expect(text(strip())).toBe('waited 2.1 s, ran 0.8 s');
    await report(makeGroup('plots', { last_cell, state: 'running' }));
    expect(text(strip())).toBe('waited 2.1 s, ran 0.8 s');

    await run(panel, 1);
    expect(strip()).not.toBeNull();
    await run(panel, 0);
    expect(strip()).toBeNull();
    await report(makeGroup('plots', { last_cell }));
    expect(strip()).toBeNull();
  });

  it('stays while the cell is waiting, even if it is run again', async () => {
    const panel = await open('plots');
    await report(makeWaiting('plots', 1), holder());
    await run(panel, 0);
    await settle(() => panel.execute(0, 'again'));
    await report(makeWaiting('plots', 2), holder());
    expect(text(strip())).toBe('2nd, about 4 s: train');
  });

  it('is removed after some minutes', async () => {
    await open('plots');
    const last_cell = { msg_id: 'plots-cell', waited: 0.25, ran: 0.8 };
    await report(makeGroup('plots', { last_cell }));
    expect(text(strip())).toBe('waited 0.3 s, ran 0.8 s');
    await pass(299);
    expect(strip()).not.toBeNull();
    await pass(2);
    expect(strip()).toBeNull();
  });

  it('shows no result after a very short wait', async () => {
    await open('plots');
    const last_cell = { msg_id: 'plots-cell', waited: 0.2, ran: 0.8 };
    await report(makeGroup('plots', { last_cell }));
    expect(strip()).toBeNull();
  });

  it('shows the last known wait if later cells ran between two messages', async () => {
    const panel = await open('plots');
    panel.execute(1, 'next');
    await report(makeWaiting('plots', 1), holder());
    const last_cell = { msg_id: 'next', waited: 0, ran: 0.1 };
    await report(makeGroup('plots', { last_cell }));
    expect(text(strip())).toBe('waited 2.0 s');
  });

  it('is shown in the waiting cell of the waiting notebook', async () => {
    const panel = await open('plots', 'train');
    panel.execute(1, 'second');
    const cell = { msg_id: 'second', since: 98, waited: 2, ran: 0 };
    await report(makeWaiting('plots', 1, { cell }), holder());
    expect(screen.getAllByRole('group', { name: 'GPU' })).toHaveLength(1);
    expect(panel.cell(1).node.contains(strip())).toBe(true);
  });

  it('is not shown if another page runs the cell', async () => {
    await open('plots');
    const cell = { msg_id: 'of another page', since: 98, waited: 2, ran: 0 };
    await report(makeWaiting('plots', 1, { cell }), holder());
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
      await report(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
      await run(panel, 1, 'executed');
      const last_cell = { msg_id: 'server', waited: 2.1, ran: 0.8 };
      await report(makeGroup('plots', { last_cell }));
      expect(text(strip())).toBe('waited 2.1 s, ran 0.8 s');
      expect(stripIndex(panel)).toBe(1);
    });

    it('is in the cell that the document marks as running', async () => {
      const panel = await open('plots');
      panel.mark(0);
      panel.mark(1);
      panel.broadcast('server', 'step(1)');
      await report(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
    });

    it('is shown when the mark arrives later than the code', async () => {
      const panel = await open('plots');
      panel.broadcast('server', 'step(1)');
      await report(waiting(), holder());
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
      await report(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
    });

    it('is shown after a reload if one cell is running', async () => {
      const panel = await open('plots');
      panel.mark(1);
      await report(waiting(), holder());
      expect(stripIndex(panel)).toBe(1);
    });

    it('is not shown if one of several cells could be running', async () => {
      const panel = await open('plots');
      await settle(() => {
        panel.content.model?.sharedModel.insertCell(2, { cell_type: 'code' });
      });
      panel.mark(1);
      panel.mark(2);
      await report(waiting(), holder());
      expect(strip()).toBeNull();
    });

    it('is not shown if a console runs the code of a cell', async () => {
      const panel = await open('plots');
      panel.broadcast('server', 'step(1)');
      await report(waiting(), holder());
      expect(strip()).toBeNull();
      // This page's own request is queued behind it.
      await run(panel, 1);
      panel.mark(1);
      panel.execute(1, 'own');
      await pass(1);
      expect(strip()).toBeNull();
    });

    it('is not shown if other code runs while a cell is marked', async () => {
      const panel = await open('plots');
      panel.mark(1);
      panel.broadcast('server', 'train()');
      await report(waiting(), holder());
      expect(strip()).toBeNull();
    });
  });

  it('is removed with its cell and with the kernel', async () => {
    const panel = await open('plots');
    await report(makeWaiting('plots', 1), holder());
    await report(holder());
    expect(strip()).toBeNull();
    await report(makeWaiting('plots', 1), holder());
    await settle(() => panel.content.model?.sharedModel.deleteCell(0));
    expect(strip()).toBeNull();
    await report(makeWaiting('plots', 1), holder());
    expect(strip()).toBeNull();
  });

  it('is never saved in the file', async () => {
    const panel = await open('plots');
    const before = panel.saved;
    await report(makeWaiting('plots', 1), holder());
    expect(strip()).not.toBeNull();
    expect(panel.saved).toBe(before);
    const last_cell = { msg_id: 'plots-cell', waited: 2.1, ran: 0.8 };
    await report(makeGroup('plots', { last_cell }));
    expect(strip()).not.toBeNull();
    expect(panel.saved).toBe(before);
    expect(panel.content.model?.dirty).toBe(false);
  });

  it('survives scrolling out of the window and back without another announcement', async () => {
    const panel = await open('plots');
    await report(makeWaiting('plots', 2), holder());
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
    expect(announced()).toBe(
      'This cell is waiting for the GPU. train is using it.'
    );
    expect(said).not.toHaveBeenCalled();
    await report(makeGroup('plots', { state: 'restoring', cell: CELL }));
    expect(said).toHaveBeenCalled();
    observer.disconnect();
  });

  it('is rendered only while the page is visible', async () => {
    await open('plots');
    await show(false);
    await report(makeWaiting('plots', 2), holder());
    expect(strip()).toBeNull();
    await show(true);
    expect(text(strip())).toBe('2nd, about 4 s: train');
  });
});
