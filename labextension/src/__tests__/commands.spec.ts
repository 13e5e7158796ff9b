// SPDX-License-Identifier: BSD-3-Clause
import { Dialog, Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import { waitFor } from '@testing-library/react';

import { addCommands, PALETTE, run } from '../commands';
import type { IDocuments } from '../documents';
import type { IGroup, ISession } from '../status';
import { CommandIds } from '../tokens';
import {
  FakeModel,
  GiB,
  makeGroup,
  makeStatus,
  makeWishes,
  trans
} from './fixtures';

let commands: CommandRegistry;
let model: FakeModel;
let opened: ISession[];
let current: string | null;

beforeAll(() => {
  // It is JupyterLab that draws the dialogs, in its own time.
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: false });
});

beforeEach(() => {
  commands = new CommandRegistry();
  model = new FakeModel(makeStatus(makeGroup('a'), makeGroup('b')));
  opened = [];
  current = 'a';
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
    }
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

/** What a dialog says, and what to type into it. */
type Step = [says: string, text?: string];

/** Run a command that asks, and press a button of each of its dialogs. */
async function answer(
  command: string,
  args: ReadonlyPartialJSONObject,
  button: 'accept' | 'reject',
  ...steps: Step[]
): Promise<void> {
  const done = commands.execute(command, args);
  for (const [says, text] of steps) {
    const dialog = await waitFor(() => {
      const found = document.querySelector<HTMLElement>('.jp-Dialog');
      expect(found?.textContent).toContain(says);
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
  it('mean the notebook in front unless they are told another', async () => {
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

  it('say what they will do now', () => {
    const keep = CommandIds.toggleKeep;
    expect(commands.label(keep)).toBe('Keep on the GPU');
    const caption = commands.caption(keep);
    change('a', { wishes: makeWishes({ keep: true, frozen: true }) });
    expect(commands.label(keep)).toBe('No Longer Keep on the GPU');
    expect(commands.caption(keep)).not.toBe(caption);
    expect(commands.label(CommandIds.toggleFrozen)).toBe('Unfreeze');
    for (const { command, args } of PALETTE) {
      if (command !== CommandIds.openPanel) {
        expect(commands.label(command, args)).not.toBe('');
        expect(commands.caption(command, args)).not.toBe('');
      }
    }
  });

  it('are possible only where they make sense', () => {
    const { release, setPriority, goTo } = CommandIds;
    expect(commands.isEnabled(release)).toBe(false);
    change('a', { state: 'running' });
    expect(commands.isEnabled(release)).toBe(true);
    for (const [priority, asked] of [
      ['interactive', 'background'],
      ['background', 'auto']
    ] as const) {
      change('a', { wishes: makeWishes({ priority: asked }) });
      expect(commands.isEnabled(setPriority, { priority })).toBe(true);
      const same = { priority: asked };
      expect(commands.isEnabled(setPriority, same)).toBe(false);
    }
    expect(commands.isEnabled(goTo)).toBe(true);
    change('a', { sessions: [] });
    expect(commands.isEnabled(goTo)).toBe(false);
  });

  it('leave the class to itself again only where it is not', async () => {
    const { setPriority } = CommandIds;
    const auto = { priority: 'auto' };
    expect(commands.isVisible(setPriority, auto)).toBe(false);
    change('a', { wishes: makeWishes({ priority: 'background' }) });
    expect(commands.isVisible(setPriority, auto)).toBe(true);
    await commands.execute(setPriority, auto);
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', priority: 'auto' }
    ]);
  });

  it('offer the class that it has not, whoever gave it', () => {
    const { setPriority } = CommandIds;
    expect(commands.label(setPriority)).toBe('Make Background');
    change('a', { class: 'background' });
    expect(commands.label(setPriority)).toBe('Make Interactive');
    expect(commands.isEnabled(setPriority)).toBe(true);
  });

  it('are not there for those who may not', () => {
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

  it('tell menus of a change, but not of each status', () => {
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

  it("show the server's sentence when it refuses", async () => {
    model.refusal = 'The scheduler does not answer.';
    await commands.execute(CommandIds.toggleKeep);
    expect(Notification.manager.notifications[0]).toMatchObject({
      type: 'error',
      message: 'The scheduler does not answer.'
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

  it('ask before they move the memory of one that works', async () => {
    await commands.execute(CommandIds.offload);
    expect(model.acts).toEqual([{ op: 'offload', group: 'a' }]);
    change('a', { state: 'running' });
    await answer(CommandIds.offload, {}, 'reject', ['It is in use.']);
    expect(model.acts).toHaveLength(1);
  });

  it('do not ask before they undo', async () => {
    change('a', { wishes: makeWishes({ frozen: true }) });
    await commands.execute(CommandIds.toggleFrozen);
    await commands.execute(CommandIds.setAntiThrash, { anti_thrash: 'auto' });
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', frozen: false },
      { op: 'settings', anti_thrash: 'auto' }
    ]);
  });
});

describe('commands that want a value', () => {
  it('ask for a cap until it is a size', async () => {
    await answer(
      CommandIds.setMemory,
      {},
      'accept',
      ['Limit the memory of a.ipynb', '-3'],
      ['"-3" is not a size', '20 GiB']
    );
    expect(model.acts).toEqual([
      { op: 'adjust', group: 'a', memory: 20 * GiB }
    ]);
  });

  it('take nothing for no cap', async () => {
    await answer(CommandIds.setMemory, {}, 'accept', ['no limit', '']);
    expect(model.acts).toEqual([{ op: 'adjust', group: 'a', memory: 0 }]);
  });

  it('ask for a quantum until it is one', async () => {
    await answer(
      CommandIds.setQuantum,
      {},
      'accept',
      ['Seconds', 'soon'],
      ['"soon" is not', '4000'],
      ['"4000" is not', '2,5']
    );
    expect(model.acts).toEqual([{ op: 'settings', quantum: 2.5 }]);
  });

  it('take nothing for the quantum that is chosen by itself', async () => {
    await answer(CommandIds.setQuantum, {}, 'accept', ['Seconds', '']);
    expect(model.acts).toEqual([{ op: 'settings', quantum: 'auto' }]);
  });

  it('offer the policies that there are, and take another', async () => {
    await answer(CommandIds.setPolicy, {}, 'accept', ['all notebooks', 'ours']);
    expect(model.acts).toEqual([{ op: 'settings', policy: 'ours' }]);
    await answer(CommandIds.setPolicy, {}, 'reject', ['all notebooks', 'fcfs']);
    expect(model.acts).toHaveLength(1);
  });

  it('do nothing when people change their minds', async () => {
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
    jest.dontMock('../actions');
  });

  it('says so when what it does cannot be loaded', async () => {
    jest.resetModules();
    jest.doMock('../actions', () => {
      throw new Error('There is no network.');
    });
    await commands.execute(CommandIds.release, { group: 'a' });
    expect(failed).toHaveBeenCalled();
    expect(Notification.manager.notifications[0]?.message).toContain(
      'could not be loaded'
    );
  });

  it('does no harm to the page when it is not there', async () => {
    run(commands, { command: CommandIds.openPanel });
    await waitFor(() => expect(failed).toHaveBeenCalled());
  });
});
