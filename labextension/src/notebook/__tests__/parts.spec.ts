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
  tell,
  toasts,
  withPage
} from './page';

withPage();

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
    await tell(long({ since: 50 }), holder());
    expect(toasts()).toHaveLength(1);
    await tell(makeGroup('plots', { state: 'restoring' }));
    expect(toasts()).toEqual([]);
  });

  it('comes if it takes long to wake', async () => {
    await open('plots');
    await tell(makeWaking('plots'));
    await pass(10);
    expect(toasts()).toEqual([
      'plots is not running yet: waking up from hibernation.'
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
      long({ since: 80, preferences: makePreferences({ frozen: true }) }),
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
    expect(toasts()[0]).toMatch(/is using it\.$/);
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
