// SPDX-License-Identifier: BSD-3-Clause
import { Dialog, Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import { waitFor } from '@testing-library/react';

import {
  FakeModel,
  GiB,
  makeGroup,
  makeSleep,
  makeStatus,
  makePreferences,
  makePrefetch,
  trans
} from '../../__tests__/fixtures';
import type { IGroup, ISession } from '../../core/status';
import type { IDocuments } from '../../tokens';
import { CommandIds } from '../../tokens';
import { addCommands } from '../commands';
import { run } from '../run';
import type { IEntry } from '../table';
import { entriesOf } from '../table';

const PALETTE = entriesOf('palette', { isPalette: true }).filter(
  (entry): entry is IEntry => entry !== null
);

let commands: CommandRegistry;
let model: FakeModel;
let opened: ISession[];
let current: string | null;
/** The group on which a context menu is open. */
let target: string | null;

beforeAll(() => {
  // It is JupyterLab that draws the dialogs, in its own time.
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: false });
});

beforeEach(() => {
  commands = new CommandRegistry();
  model = new FakeModel(makeStatus(makeGroup('a'), makeGroup('b')));
  opened = [];
  current = 'a';
  target = null;
  const documents: IDocuments = {
    changed: new Signal({} as IDocuments),
    get currentKernel() {
      return current;
    },
    get currentGroup() {
      return model.groupOf(current);
    },
    of: group => group.sessions,
    names: () => new Map([['b', 'x/b.ipynb']])
  };
  addCommands({
    commands,
    model,
    documents,
    trans,
    open: document => {
      opened.push(document);
      return Promise.resolve();
    },
    groupAt: () => target
  });
});

afterEach(() => {
  Dialog.flush();
  Notification.dismiss();
});

function change(id: string, changes: Partial<IGroup>): void {
  const { groups, ...status } = model.status ?? makeStatus();
  model.status = {
    ...status,
    groups: groups.map(group =>
      group.id === id ? { ...group, ...changes } : group
    )
  };
}

/** The expected text of a dialog, and the input. */
type Step = [expected: string, text?: string];

/** Run a command that asks, and press a button of each of its dialogs. */
async function answer(
  command: string,
  args: ReadonlyPartialJSONObject,
  button: 'accept' | 'reject',
  ...steps: Step[]
): Promise<void> {
  const done = commands.execute(command, args);
  for (const [expected, text] of steps) {
    const dialog = await waitFor(() => {
      const found = document.querySelector<HTMLElement>('.jp-Dialog');
      expect(found?.textContent).toContain(expected);
      return found;
    });
    const input = dialog?.querySelector('input');
    if (input && text !== undefined) {
      input.value = text;
    }
    dialog?.querySelector<HTMLElement>(`.jp-mod-${button}`)?.click();
    await waitFor(() => expect(dialog?.isConnected).toBe(false));
  }
  await done;
}

describe('commands', () => {
  it('apply to the active notebook by default', async () => {
    await commands.execute(CommandIds.toggleKeep);
    await commands.execute(CommandIds.toggleKeep, { group: 'b' });
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', keep: true },
      { op: 'adjust', group: 'b', keep: true }
    ]);
    current = null;
    expect(commands.isEnabled(CommandIds.toggleKeep)).toBe(false);
    expect(commands.isEnabled(CommandIds.toggleKeep, { group: 'c' })).toBe(
      false
    );
  });

  it('have longer labels only in the palette', () => {
    const { release, setAntiThrash, setQuantum } = CommandIds;
    const palette = PALETTE.filter(({ command }) =>
      commands.hasCommand(command)
    );
    expect(palette.length).toBeGreaterThan(10);
    for (const { command, args } of palette) {
      expect(commands.label(command, args)).toMatch(/^GPU sharing: \S/);
    }
    for (const command of [release, setAntiThrash, setQuantum]) {
      expect(commands.label(command)).not.toContain('GPU sharing');
    }
  });

  it('name the notebook that a button shows, in few letters', () => {
    const label = (group: string): string =>
      commands.label(CommandIds.goTo, { group, isShort: true });
    expect(label('b')).toBe('Go to x/b');
    change('a', { name: 'a-notebook-with-a-long-name.ipynb' });
    expect(label('a')).toBe('Go to a-notebook-wi…g-name');
  });

  it('explain the effect of a release on other notebooks', () => {
    const caption = (): string => commands.caption(CommandIds.release);
    expect(caption()).toContain('No other notebook is waiting now.');
    change('b', { state: 'waiting' });
    expect(caption()).toContain('1 waiting notebook can run sooner.');
    expect(caption()).toContain('keeps its memory');
    change('a', { state: 'waiting' });
    expect(caption()).toContain('1 waiting notebook');
  });

  it('explain what they will do in the current state', () => {
    const keep = CommandIds.toggleKeep;
    expect(commands.label(keep)).toBe('Keep on the GPU');
    const caption = commands.caption(keep);
    change('a', { preferences: makePreferences({ keep: true, frozen: true }) });
    expect(commands.label(keep)).toBe('Stop Keeping on the GPU');
    expect(commands.caption(keep)).not.toBe(caption);
    expect(commands.label(CommandIds.toggleFrozen)).toBe('Unfreeze');
    for (const { command, args } of PALETTE) {
      // Those that show a part of the extension come with that part.
      if (commands.hasCommand(command)) {
        expect(commands.label(command, args)).not.toBe('');
        expect(commands.caption(command, args)).not.toBe('');
      }
    }
  });

  it('are enabled only where they make sense', () => {
    const { release, setPriority, goTo } = CommandIds;
    expect(commands.isEnabled(release)).toBe(false);
    change('a', { state: 'running' });
    expect(commands.isEnabled(release)).toBe(true);
    for (const [priority, asked] of [
      ['interactive', 'background'],
      ['agent', 'interactive'],
      ['background', 'auto']
    ] as const) {
      change('a', { preferences: makePreferences({ priority: asked }) });
      expect(commands.isEnabled(setPriority, { priority })).toBe(true);
      const same = { priority: asked };
      expect(commands.isEnabled(setPriority, same)).toBe(false);
    }
    expect(commands.isEnabled(goTo)).toBe(true);
    change('a', { sessions: [] });
    expect(commands.isEnabled(goTo)).toBe(false);
  });

  it('hibernate an idle notebook, and wake it', async () => {
    const { hibernate, wake } = CommandIds;
    expect(commands.isVisible(wake)).toBe(false);
    await commands.execute(hibernate);
    change('a', { state: 'hibernated', hibernation: makeSleep() });
    expect(commands.isVisible(hibernate)).toBe(false);
    expect(commands.isVisible(wake)).toBe(true);
    await commands.execute(wake);
    expect(model.acts).toEqual([
      { op: 'hibernate', group: 'a' },
      { op: 'wake', group: 'a' }
    ]);
    change('a', {
      state: 'waking',
      hibernation: makeSleep({ state: 'waking' })
    });
    expect(commands.isEnabled(wake)).toBe(false);
    expect(commands.caption(wake)).toBe('It is waking up.');
    change('a', {
      state: 'idle',
      hibernation: makeSleep({ state: 'parking' })
    });
    expect(commands.isVisible(hibernate)).toBe(false);
    expect(commands.isEnabled(wake)).toBe(true);
  });

  it('get a notebook ready whose memory is not on the GPU', async () => {
    const { ready } = CommandIds;
    // Older schedulers cannot do it.
    expect(commands.isVisible(ready)).toBe(false);
    change('a', { prefetch: null });
    expect(commands.isVisible(ready)).toBe(true);
    await commands.execute(ready);
    expect(model.acts).toEqual([{ op: 'ready', group: 'a' }]);
    change('a', { state: 'prefetching', prefetch: makePrefetch() });
    expect(commands.isEnabled(ready)).toBe(false);
    change('a', { state: 'hibernated', prefetch: null });
    expect(commands.isEnabled(ready)).toBe(true);
    change('a', { state: 'idle', gpus: [], prefetch: null });
    expect(commands.isEnabled(ready)).toBe(false);
    const status = makeStatus(makeGroup('a', { prefetch: null }));
    const { settings } = status;
    model.status = {
      ...status,
      settings: settings && { ...settings, prefetch: false }
    };
    expect(commands.isVisible(ready)).toBe(false);
  });

  it('hibernate a busy notebook when it is idle, unless cancelled', async () => {
    const { hibernate, wake } = CommandIds;
    change('a', { state: 'running' });
    expect(commands.label(hibernate)).toBe('Hibernate When Idle');
    await commands.execute(hibernate);
    change('a', {
      state: 'running',
      hibernation: makeSleep({ state: 'ordered' })
    });
    expect(commands.isVisible(hibernate)).toBe(false);
    expect(commands.label(wake)).toBe('Cancel Hibernation');
    expect(commands.caption(wake)).toBe('Cancel the pending hibernation.');
    await commands.execute(wake);
    expect(model.acts).toEqual([
      { op: 'hibernate', group: 'a' },
      { op: 'wake', group: 'a' }
    ]);
    change('a', { state: 'idle' });
    expect(commands.label(hibernate)).toBe('Hibernate Now');
  });

  it.each<[string, Partial<IGroup>, string]>([
    [
      'one that is kept',
      { preferences: makePreferences({ keep: true }) },
      'it is kept on the GPU'
    ],
    [
      'one that never can',
      { hibernation: makeSleep({ state: 'refused', code: 'gpus' }) },
      'its process uses several GPUs'
    ]
  ])('explain why they do not hibernate %s', (_, changes, why) => {
    change('a', changes);
    expect(commands.isVisible(CommandIds.hibernate)).toBe(true);
    expect(commands.isEnabled(CommandIds.hibernate)).toBe(false);
    expect(commands.caption(CommandIds.hibernate)).toBe(
      `Cannot hibernate now: ${why}.`
    );
  });

  it('can be repeated if the refusal may be temporary', () => {
    const hibernation = makeSleep({ state: 'refused', code: 'busy' });
    change('a', { hibernation });
    expect(commands.isEnabled(CommandIds.hibernate)).toBe(true);
  });

  it('explain why nothing can be hibernated', () => {
    const { hibernate, toggleHibernation, setHibernation } = CommandIds;
    model.status = {
      ...makeStatus(makeGroup('a')),
      hibernation: {
        able: false,
        code: 'driver',
        text: 'the driver is older than 570',
        moves: false
      }
    };
    for (const command of [hibernate, toggleHibernation, setHibernation]) {
      expect(commands.isVisible(command)).toBe(true);
      expect(commands.isEnabled(command)).toBe(false);
      expect(commands.caption(command)).toContain(
        'cannot checkpoint processes: the driver is older than 570.'
      );
    }
  });

  it('are hidden if an older scheduler does not support them', () => {
    const status = makeStatus(makeGroup('a'));
    model.status = {
      ...status,
      settings: { quantum: 'auto', anti_thrash: 'auto', policy: 'burst' },
      hibernation: null
    };
    const { hibernate, wake, toggleHibernation, setHibernation } = CommandIds;
    for (const id of [hibernate, wake, toggleHibernation, setHibernation]) {
      expect(commands.isVisible(id)).toBe(false);
    }
  });

  it('turn hibernation off, and on again', async () => {
    const { toggleHibernation } = CommandIds;
    expect(commands.isToggled(toggleHibernation)).toBe(true);
    await commands.execute(toggleHibernation);
    const status = makeStatus();
    model.status = {
      ...status,
      settings: status.settings && { ...status.settings, hibernate_after: null }
    };
    expect(commands.isToggled(toggleHibernation)).toBe(false);
    await commands.execute(toggleHibernation);
    expect(model.acts).toEqual([
      { op: 'settings', hibernate_after: 0 },
      { op: 'settings', hibernate_after: 600 }
    ]);
  });

  it('reset the priority only if it was set', async () => {
    const { setPriority } = CommandIds;
    const auto = { priority: 'auto' };
    expect(commands.isVisible(setPriority, auto)).toBe(false);
    change('a', { preferences: makePreferences({ priority: 'background' }) });
    expect(commands.isVisible(setPriority, auto)).toBe(true);
    await commands.execute(setPriority, auto);
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', priority: 'auto' }
    ]);
  });

  it("are in JupyterLab's menu of a document if its kernel uses the GPU", () => {
    const { release, hibernate, wake } = CommandIds;
    const args = { isContext: true, isDocument: true };
    for (const command of [release, hibernate, wake]) {
      expect(commands.isVisible(command, args)).toBe(false);
    }
    target = 'a';
    expect(commands.isVisible(release, args)).toBe(true);
    expect(commands.label(release, args)).toBe('Release the GPU');
    expect(commands.label(hibernate, args)).toBe('GPU: Hibernate Now');
    expect(commands.label(wake, args)).toBe('GPU: Wake');
  });

  it('offer the opposite class, whether it was set or chosen', () => {
    const { setPriority } = CommandIds;
    expect(commands.label(setPriority)).toBe('Let Others Go First');
    change('a', { class: 'background' });
    expect(commands.label(setPriority)).toBe('Make Interactive');
    expect(commands.isEnabled(setPriority)).toBe(true);
  });

  it('are hidden without the permission', () => {
    model.status = {
      ...makeStatus(makeGroup('a', { state: 'running' })),
      may: { adjust: false, settings: false }
    };
    for (const command of Object.values(CommandIds)) {
      if (commands.hasCommand(command) && command !== CommandIds.goTo) {
        expect(commands.isVisible(command)).toBe(false);
        expect(commands.isEnabled(command)).toBe(false);
      }
    }
    expect(commands.isVisible(CommandIds.goTo)).toBe(true);
  });

  it('notify menus of a change, but not of each status', () => {
    let changes = 0;
    commands.commandChanged.connect(() => changes++);
    change('a', { state: 'running' });
    const once = changes;
    expect(once).toBeGreaterThan(0);
    change('a', { yields_in: 3 });
    change('b', { state: 'running' });
    expect(changes).toBe(once);
  });

  it('go to the notebook rather than to its console', async () => {
    const console = { path: 'c', name: 'C', type: 'console', kernel_id: 'a' };
    const [notebook] = makeGroup('a').sessions;
    change('a', { sessions: [console, ...(notebook ? [notebook] : [])] });
    await commands.execute(CommandIds.goTo);
    expect(opened).toEqual([notebook]);
  });

  it("show the server's message when it refuses", async () => {
    model.refusal = 'The scheduler is not responding.';
    await commands.execute(CommandIds.toggleKeep);
    expect(Notification.manager.notifications[0]).toMatchObject({
      type: 'error',
      message: 'The scheduler is not responding.'
    });
  });

  it('describe their arguments', async () => {
    for (const command of Object.values(CommandIds)) {
      if (commands.hasCommand(command)) {
        const { args } = await commands.describedBy(command);
        expect(args).toHaveProperty('properties');
      }
    }
  });
});

describe('dangerous commands', () => {
  it.each([
    [CommandIds.toggleFrozen, { group: 'b' }, 'Freeze x/b.ipynb?'],
    [CommandIds.setAntiThrash, { anti_thrash: 'on' }, 'all notebooks'],
    [CommandIds.setAntiThrash, { anti_thrash: 'off' }, 'very slow']
  ])('ask first: %s %j', async (command, args, said) => {
    await answer(command, args, 'reject', [said]);
    expect(model.acts).toEqual([]);
    await answer(command, args, 'accept', [said]);
    expect(model.acts).toHaveLength(1);
  });

  it('ask before they evict the memory of a busy notebook', async () => {
    await commands.execute(CommandIds.evict);
    expect(model.acts).toEqual([{ op: 'evict', group: 'a' }]);
    change('a', { state: 'running' });
    await answer(CommandIds.evict, {}, 'reject', ['The memory is in use.']);
    expect(model.acts).toHaveLength(1);
  });

  it('do not ask before they undo an action', async () => {
    change('a', { preferences: makePreferences({ frozen: true }) });
    await commands.execute(CommandIds.toggleFrozen);
    await commands.execute(CommandIds.setAntiThrash, { anti_thrash: 'auto' });
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', frozen: false },
      { op: 'settings', anti_thrash: 'auto' }
    ]);
  });
});

describe('commands that ask for a value', () => {
  it('ask for a memory limit until it is a valid size', async () => {
    await answer(
      CommandIds.setMemory,
      {},
      'accept',
      ['Limit the memory of a.ipynb', '-3'],
      ['Invalid size "-3".', '20 GiB']
    );
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', memory: 20 * GiB }
    ]);
  });

  it('accept an empty text as no limit', async () => {
    await answer(CommandIds.setMemory, {}, 'accept', ['no limit', '']);
    expect(model.acts).toEqual([{ op: 'adjust', group: 'a', memory: 0 }]);
  });

  it('ask for a time slice until it is valid', async () => {
    await answer(
      CommandIds.setQuantum,
      {},
      'accept',
      ['In seconds.', 'soon'],
      ['Invalid time "soon".', '4000'],
      ['Invalid time "4000".', '2,5']
    );
    expect(model.acts).toEqual([{ op: 'settings', quantum: 2.5 }]);
  });

  it('accept an empty text as the automatic time slice', async () => {
    await answer(CommandIds.setQuantum, {}, 'accept', ['In seconds.', '']);
    expect(model.acts).toEqual([{ op: 'settings', quantum: 'auto' }]);
  });

  it('ask after how many minutes idle notebooks hibernate', async () => {
    await answer(
      CommandIds.setHibernation,
      {},
      'accept',
      ['Idle time before a notebook hibernates', 'soon'],
      ['Invalid time "soon".', '-1'],
      ['Invalid time "-1".', '2,5']
    );
    await answer(CommandIds.setHibernation, {}, 'accept', [
      'turn hibernation off',
      ''
    ]);
    await commands.execute(CommandIds.setHibernation, { hibernate_after: 60 });
    expect(model.acts).toEqual([
      { op: 'settings', hibernate_after: 150 },
      { op: 'settings', hibernate_after: 0 },
      { op: 'settings', hibernate_after: 60 }
    ]);
  });

  it('offer only the policies that the server names', async () => {
    const status = makeStatus(makeGroup('a'));
    const policies = ['another', 'burst', 'of_another_package'];
    model.status = {
      ...status,
      settings: status.settings && { ...status.settings, policies }
    };
    const done = commands.execute(CommandIds.setPolicy);
    const select = await waitFor(() => {
      const found =
        document.querySelector<HTMLSelectElement>('.jp-Dialog select');
      expect(found).not.toBeNull();
      return found!;
    });
    expect([...select.options].map(({ value }) => value)).toEqual(policies);
    expect(select.value).toBe('burst');
    select.value = 'of_another_package';
    document.querySelector<HTMLElement>('.jp-Dialog .jp-mod-accept')?.click();
    await done;
    expect(model.acts).toEqual([
      { op: 'settings', policy: 'of_another_package' }
    ]);
  });

  it('accept any policy if an older server names none', async () => {
    await answer(CommandIds.setPolicy, {}, 'accept', ['all notebooks', 'ours']);
    expect(model.acts).toEqual([{ op: 'settings', policy: 'ours' }]);
    await answer(CommandIds.setPolicy, {}, 'reject', ['all notebooks', 'fcfs']);
    expect(model.acts).toHaveLength(1);
  });

  it('do nothing when the user cancels', async () => {
    await answer(CommandIds.setMemory, {}, 'reject', ['no limit', '20 GiB']);
    expect(model.acts).toEqual([]);
  });
});

describe('a command that fails', () => {
  const failed = jest.fn();

  beforeEach(() => {
    failed.mockReset();
    jest.spyOn(console, 'error').mockImplementation(failed);
  });

  afterEach(() => {
    jest.restoreAllMocks();
    jest.dontMock('../perform');
  });

  it('shows an error when its code cannot be loaded', async () => {
    jest.resetModules();
    jest.doMock('../perform', () => {
      throw new Error('There is no network.');
    });
    await commands.execute(CommandIds.release, { group: 'a' });
    expect(failed).toHaveBeenCalled();
    expect(Notification.manager.notifications[0]?.message).toContain(
      'failed to load'
    );
  });

  it('does not break the page when it does not exist', async () => {
    run(commands, { command: CommandIds.openPanel });
    await waitFor(() => expect(failed).toHaveBeenCalled());
  });
});
