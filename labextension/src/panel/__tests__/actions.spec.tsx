// SPDX-License-Identifier: BSD-3-Clause
import {
  act,
  fireEvent,
  screen,
  waitFor,
  within
} from '@testing-library/react';

import {
  explained,
  makeGroup,
  makeStatus,
  makeWaiting,
  makePreferences,
  plain
} from '../../__tests__/fixtures';
import { CommandIds } from '../../tokens';
import { busy, rowOf, rowsOf, running, setUp, textOf } from './panel';

beforeAll(() => {
  // axe asks whether letters are pictures; here there are no pictures at all.
  HTMLCanvasElement.prototype.getContext = () => null;
});

describe('actions', () => {
  it.each([
    ['Go to train', CommandIds.goTo, { group: 'train' }],
    ['Release', CommandIds.release, { group: 'train' }],
    [
      'Let others go first',
      CommandIds.setPriority,
      { group: 'train', priority: 'background' }
    ]
  ])('%s runs its command', (name, command, args) => {
    const { commands } = setUp(busy);
    const button = within(rowOf('train.ipynb')).getByRole('button', { name });
    expect(button.getAttribute('title')).toContain(`What ${command} does`);
    button.focus();
    expect(document.activeElement).toBe(button);
    fireEvent.click(button);
    expect(commands.executed).toEqual([[command, args]]);
  });

  it('explains the rule in the tooltip of a reason', async () => {
    const { model } = setUp(busy);
    const name = 'train.ipynb';
    model.explanation = explained({ group: 'train', name, code: 'focus' });
    const reason = within(rowOf('plots.ipynb')).getByText(/needs/);
    const full = reason.title;
    expect(plain(full)).toContain("train's turn ends within 3 s");
    fireEvent.mouseEnter(reason);
    await waitFor(() =>
      expect(reason.title).toBe(
        `${full}\ntrain is ahead: it is open in its user's browser`
      )
    );
    fireEvent.mouseLeave(reason);
    expect(reason.title).toBe(full);
    expect(model.explained).toEqual(['plots']);
  });

  it('shows that and why the scheduler lowered the priority', () => {
    const since = { class: 'background' as const };
    setUp(
      makeStatus(
        { ...running, ...since },
        makeGroup('eda', {
          ...since,
          last_cell: { msg_id: 'm', waited: 0, ran: 3 }
        }),
        makeWaiting('plots', 1)
      )
    );
    const shown = within(rowOf('train.ipynb')).getByText('low priority');
    expect(plain(shown.title)).toBe(
      'low priority: its cell has used 9 s of GPU time; the next cell is interactive again'
    );
    // An idle notebook does not compete.
    expect(within(rowOf('eda.ipynb')).queryByText('low priority')).toBeNull();
  });

  it('shows no low priority while no notebook competes', () => {
    setUp(makeStatus({ ...running, class: 'background' }, makeGroup('eda')));
    expect(screen.queryByText('low priority')).toBeNull();
    expect(screen.queryByText('interactive')).toBeNull();
  });

  it('offers the opposite class', () => {
    // It became background by itself.
    setUp(makeStatus({ ...running, class: 'background' }));

    screen.getByRole('button', { name: 'Make interactive' });
    expect(
      screen.queryByRole('button', { name: 'Let others go first' })
    ).toBeNull();
  });

  it('hides actions that are not possible now', () => {
    const { commands, report } = setUp(busy);
    commands.disabled.add(CommandIds.release);
    report({ ...busy, groups: [{ ...running }] });
    expect(screen.queryByRole('button', { name: 'Release' })).toBeNull();
  });

  it('unfreezes a frozen notebook', () => {
    const preferences = makePreferences({ frozen: true });
    const { commands } = setUp(makeStatus(makeGroup('a', { preferences })));
    fireEvent.click(screen.getByRole('button', { name: 'Unfreeze' }));
    expect(commands.executed).toEqual([
      [CommandIds.toggleFrozen, { group: 'a' }]
    ]);
  });

  it('keeps the focus on a notebook that moves to another section', () => {
    const { report } = setUp(busy);
    const release = within(rowOf('train.ipynb')).getByText('Release');
    release.closest('button')!.focus();
    report({ ...busy, groups: [makeGroup('train'), makeGroup('eda')] });
    const [now] = rowsOf('Idle 2');
    expect(now?.contains(document.activeElement)).toBe(true);
    expect(textOf(now)).toContain('train.ipynb');
  });

  it('does not take the focus back from another element', async () => {
    const { report } = setUp(busy);
    const release = within(rowOf('train.ipynb')).getByText('Release');
    release.closest('button')!.focus();
    release.closest('button')!.blur();
    await act(() => new Promise(resolve => setTimeout(resolve)));
    report({ ...busy, groups: [makeGroup('train')] });
    expect(document.activeElement).toBe(document.body);
  });

  it('opens the notebook with a click on its name', () => {
    const { commands } = setUp(busy);
    fireEvent.click(screen.getByText('eda.ipynb'));
    expect(commands.executed).toEqual([[CommandIds.goTo, { group: 'eda' }]]);
  });

  it('has all actions in a menu, which returns the focus', () => {
    const { commands } = setUp(busy);
    const more = within(rowOf('eda.ipynb')).getByRole('button', {
      name: 'More actions'
    });
    fireEvent.click(more);
    expect(more.getAttribute('aria-expanded')).toBe('true');
    const menu = screen.getByRole('menu');
    const items = within(menu)
      .getAllByRole('menuitem')
      .map(({ textContent }) => textContent);
    expect(items).toEqual([
      'Go to the Notebook',
      'Release the GPU',
      'Let Others Go First',
      'Make Interactive',
      'Treat as Agent',
      'Set Priority Automatically',
      'Keep on the GPU',
      'Limit Its Memory…',
      'Freeze',
      'Evict Its Memory',
      'Hibernate Now',
      'Wake',
      'Get Ready'
    ]);
    for (const key of ['ArrowUp', 'Enter']) {
      fireEvent.keyDown(menu, {
        key,
        keyCode: { ArrowUp: 38, Enter: 13 }[key]
      });
    }
    expect(commands.executed).toEqual([[CommandIds.ready, { group: 'eda' }]]);
    expect(screen.queryByRole('menu')).toBeNull();
    expect(more.getAttribute('aria-expanded')).toBe('false');
    expect(document.activeElement).toBe(more);
  });

  it('changes how notebooks share, with the permission', () => {
    const { commands, report } = setUp(busy);
    fireEvent.click(
      screen.getByRole('button', {
        name: 'How notebooks share the GPU: automatic'
      })
    );
    const menu = screen.getByRole('menu');
    for (const key of [40, 40, 13]) {
      fireEvent.keyDown(menu, { keyCode: key });
    }
    expect(commands.executed).toEqual([
      [CommandIds.setAntiThrash, { anti_thrash: 'on' }]
    ]);
    report({ ...busy, may: { adjust: true, settings: false } });
    expect(screen.queryByRole('button', { name: /^How/ })).toBeNull();
    screen.getByText('automatic');
  });
});
