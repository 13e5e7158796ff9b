// SPDX-License-Identifier: BSD-3-Clause
import { Notification } from '@jupyterlab/apputils';
import axe from 'axe-core';

import {
  makeGroup,
  makeWaiting,
  makeWaking,
  makePreferences,
  PREFERENCES
} from '../../__tests__/fixtures';
import type { IGroup } from '../../core/status';
import { CommandIds } from '../../tokens';
import {
  commands,
  holder,
  model,
  open,
  panels,
  pass,
  settle,
  show,
  strip,
  report,
  toasts,
  withPage
} from './page';

withPage();

describe('The notification', () => {
  const long = (changes: Partial<IGroup> = {}): IGroup =>
    makeWaiting('plots', 2, changes);

  it('is shown once after the delay, with the holder and the position, and ends with the wait', async () => {
    await open('plots');
    await report(long(), holder());
    await pass(7.5);
    expect(toasts()).toEqual([]);
    await pass(1);
    expect(toasts()).toEqual([
      'plots is waiting for the GPU: 2nd in the queue. train is using it.'
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
    await report(long({ since: 50 }), holder());
    expect(toasts()).toHaveLength(1);
    await report(makeGroup('plots', { state: 'restoring' }));
    expect(toasts()).toEqual([]);
  });

  it('is shown if waking takes long', async () => {
    await open('plots');
    await report(makeWaking('plots'));
    await pass(10);
    expect(toasts()).toEqual([
      'plots is not running yet: waking up from hibernation.'
    ]);
  });

  it('is shown for a notebook that is not active', async () => {
    await open('front', 'plots');
    await settle(() => panels[1]?.hide());
    await report(long({ since: 80 }), holder());
    expect(toasts()).toHaveLength(1);
  });

  it('is not shown if it is turned off, if no cell is waiting, or if the notebook is frozen', async () => {
    await open('plots');
    model.preferences = { ...PREFERENCES, notify: false };
    await report(long({ since: 80 }), holder());
    expect(toasts()).toEqual([]);
    model.preferences = PREFERENCES;
    await report(long({ since: 80, cell: null }), holder());
    await report(
      long({ since: 80, preferences: makePreferences({ frozen: true }) }),
      holder()
    );
    expect(toasts()).toEqual([]);
    await report(long({ since: 80 }), holder());
    expect(toasts()).toHaveLength(1);
  });

  it('waits on a hidden page until the page is visible and the state is new', async () => {
    await open('plots');
    await show(false);
    await report(long({ since: 80 }), holder());
    await pass(60);
    expect(toasts()).toEqual([]);
    await show(true);
    await pass(60);
    expect(toasts()).toEqual([]);
    await report(long({ since: 80 }), holder());
    expect(toasts()).toHaveLength(1);
    // The notification stays until the state is newer.
    await show(false);
    await show(true);
    expect(toasts()).toHaveLength(1);
    await report(holder());
    expect(toasts()).toEqual([]);
  });

  it('ignores a state from before the page was hidden', async () => {
    await open('plots');
    await report(long(), holder());
    await show(false);
    await pass(60);
    await show(true);
    expect(toasts()).toEqual([]);
    await report(long(), holder());
    await pass(9);
    expect(toasts()).toHaveLength(1);
  });

  it('is removed with the notebook', async () => {
    const panel = await open('plots');
    await report(long({ since: 80 }), holder());
    await settle(() => panel.dispose());
    expect(toasts()).toEqual([]);
  });

  it('is short enough for JupyterLab, even with long names', async () => {
    await open('plots');
    const path = `${'a_very_long_name_'.repeat(10)}.ipynb`;
    await report(
      long({ since: 80, sessions: [], name: path }),
      holder({ sessions: [], name: path })
    );
    expect(toasts()[0]?.length).toBeLessThanOrEqual(140);
    expect(toasts()[0]).toMatch(/is using it\.$/);
  });
});

describe('The active model', () => {
  it('is needed only while a notebook is visible or busy', async () => {
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

it('has no accessibility problems', async () => {
  const panel = await open('plots');
  await report(makeWaiting('plots', 2), holder());
  jest.useRealTimers();
  for (const node of [strip(), panel.toolbar.node]) {
    const { violations } = await axe.run(node as HTMLElement, {
      // There are no colours without a browser.
      rules: { 'color-contrast': { enabled: false } }
    });
    expect(violations).toEqual([]);
  }
});
