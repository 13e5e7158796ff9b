// SPDX-License-Identifier: BSD-3-Clause
import { fireEvent, screen, waitFor, within } from '@testing-library/react';

import {
  explained,
  makeGroup,
  makeHibernated,
  makeStatus,
  makeWaiting,
  makeWaking,
  makePreferences,
  makePrefetch,
  plain
} from '../../__tests__/fixtures';
import type { IGroup } from '../../core/status';
import { CommandIds } from '../../tokens';
import {
  commands,
  holder,
  model,
  open,
  settle,
  slots,
  strip,
  report,
  withPage
} from './page';

withPage();

describe('The chip', () => {
  const chip = (): HTMLElement | null =>
    document.querySelector<HTMLElement>('.jp-GpuShare-chip');

  it('is hidden until the kernel uses the GPU', async () => {
    await open('plots');
    await report(holder());
    expect(chip()).toBeNull();
  });

  it.each<[string, Partial<IGroup>]>([
    ['GPU: running', { state: 'running' }],
    ['GPU: idle', { state: 'idle' }],
    ['GPU: idle lease', { state: 'idle_lease' }],
    [
      'GPU: idle lease',
      {
        state: 'idle_lease',
        cell: { msg_id: 'c', since: 90, waited: 0, ran: 1 }
      }
    ],
    ['GPU: restoring', { state: 'restoring' }],
    ['GPU: getting ready', { state: 'prefetching' }],
    [
      'GPU: ready',
      { state: 'idle_lease', prefetch: makePrefetch({ stage: 'ready' }) }
    ],
    ['GPU: frozen', { preferences: makePreferences({ frozen: true }) }]
  ])('says %s', async (expected, changes) => {
    await open('plots');
    await report(makeGroup('plots', changes), holder());
    expect(plain(chip()?.textContent ?? '')).toBe(expected);
    expect(chip()?.title).toContain('5 GiB on the GPU'.replace(' ', '\u00a0'));
  });

  it('shows the position in the queue, with the reason and the times in its tooltip', async () => {
    await open('plots');
    await report(makeWaiting('plots', 2), holder());
    expect(plain(chip()?.textContent ?? '')).toBe('GPU: waiting, 2nd');
    expect(plain(chip()?.title ?? '').split('\n')).toEqual([
      '2nd, about 4 s',
      '90% of waits like this end within 9 s.',
      "needs 15 GiB more; train's turn ends within 3 s",
      '5 GiB on the GPU, 2 GiB in host memory'
    ]);
  });

  it('shows that and why the scheduler lowered the priority', async () => {
    await open('plots');
    const cell = { msg_id: 'plots-cell', since: 88, waited: 0, ran: 12 };
    await report(
      makeGroup('plots', { state: 'running', cell, class: 'background' }),
      makeWaiting('eda', 1)
    );
    expect(chip()?.textContent).toBe('GPU: running, low priority');
    expect(
      plain(chip()?.title ?? '')
        .split('\n')
        .pop()
    ).toBe(
      'low priority: its cell has used 12 s of GPU time; the next cell is interactive again'
    );
  });

  it.each<[string, string, Partial<IGroup>]>([
    ['alone', 'GPU: running', { state: 'running' }],
    ['idle', 'GPU: idle', { state: 'idle' }],
    [
      'alone as somebody asked',
      'GPU: running, low priority',
      {
        state: 'running',
        preferences: makePreferences({ priority: 'background' })
      }
    ]
  ])(
    'shows that its notebook is in the background only where it matters: %s',
    async (_, expected, changes) => {
      await open('plots');
      await report(
        makeGroup('plots', { class: 'background', ...changes }),
        makeGroup('eda')
      );
      expect(chip()?.textContent).toBe(expected);
      expect(chip()?.title.includes('low priority')).toBe(
        expected.includes('low priority')
      );
    }
  );

  it('takes no space until it has a text', async () => {
    const panel = await open('plots');
    expect(slots.of(panel.asPanel)?.isHidden).toBe(true);
    await report(makeGroup('plots'));
    expect(slots.of(panel.asPanel)?.isHidden).toBe(false);
  });

  it('shows that its notebook is hibernated or waking', async () => {
    const panel = await open('plots');
    await report(makeHibernated('plots'));
    const chip = (): HTMLElement =>
      within(panel.toolbar.node).getByRole('button');
    expect(chip().textContent).toBe('GPU: hibernated');
    expect(chip().title).toContain('it uses no GPU memory');
    expect(chip().dataset['mark']).toBe('hibernated');
    await report(makeWaking('plots'));
    expect(chip().textContent).toBe('GPU: waking');
  });

  it('explains like the strip which rule puts other notebooks ahead', async () => {
    const name = 'train.ipynb';
    model.explanation = explained({ group: 'train', name, code: 'number' });
    await open('plots');
    await report(makeWaiting('plots', 2), holder());
    const line = strip()?.querySelector<HTMLElement>('[tabindex]');
    for (const part of [chip(), line]) {
      await settle(() => fireEvent.mouseEnter(part as HTMLElement));
      await waitFor(() =>
        expect(part?.title.split('\n').pop()).toBe(
          'train is ahead: it arrived first'
        )
      );
      await settle(() => fireEvent.mouseLeave(part as HTMLElement));
      expect(part?.title).not.toContain('comes first');
    }
  });

  it('shows that the kernel does not share', async () => {
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

  it('is hidden on a machine without a GPU', async () => {
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

  it('opens a menu of actions on its notebook', async () => {
    await open('plots');
    await report(makeGroup('plots'));
    await settle(() => chip()?.focus());
    fireEvent.click(chip() as HTMLElement);
    await settle();
    const items = screen.getAllByRole('menuitem');
    expect(items.map(item => item.textContent)).toEqual([
      'Show GPU Sharing',
      'Release the GPU',
      'Let Others Go First',
      'Make Interactive',
      'Treat as Agent',
      'Set Priority Automatically',
      'Keep on the GPU',
      'Freeze',
      'Limit Its Memory…',
      'Evict Its Memory',
      'Hibernate Now',
      'Wake',
      'Get Ready'
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
