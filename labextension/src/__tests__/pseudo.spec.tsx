// SPDX-License-Identifier: BSD-3-Clause
import type { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { cleanup, render } from '@testing-library/react';
import React from 'react';

import { extract } from '../../messages';
import { addCommands } from '../actions/commands';
import type { IEntry } from '../actions/table';
import { entriesOf } from '../actions/table';
import type { ICode, IGroup, IStatus, State } from '../core/status';
import { Chip } from '../notebook/chip';
import { resultStrip, runningStrip, waitingStrip } from '../notebook/strip';
import { PanelContent } from '../panel';
import { GpuSection } from '../running';
import type { IDocuments } from '../tokens';
import { CommandIds } from '../tokens';
import {
  availabilityText,
  nobodyText,
  noGpuText,
  unsharedText
} from '../words/availability';
import { statusTitle } from '../words/details';
import { explanationText } from '../words/explanation';
import { nameGroups } from '../words/names';
import { noticeText } from '../words/notices';
import type { IWording } from '../words/short';
import { memoryText, tiersText } from '../words/states';
import { statusText } from '../words/statusbar';
import {
  FakeModel,
  GiB,
  makeGroup,
  makeHibernated,
  makeSession,
  makePrefetch,
  makeSleep,
  makeSpan,
  makeStatus,
  makeTimeline,
  makeWaking,
  trans
} from './fixtures';

/** The texts that translators get. */
const messages = new Set(
  extract().messages.flatMap(({ id, plural }) => [id, plural ?? id])
);

const PALETTE = entriesOf('palette', { isPalette: true }).filter(
  (entry): entry is IEntry => entry !== null
);

/** A language that has each message that translators are given, in brackets. */
const pseudo = {
  __: (message: string, ...values: unknown[]) => {
    const text = trans.__(message, ...values);
    return messages.has(message) ? `⟦${text}⟧` : text;
  },
  _n: (one: string, more: string, n: number, ...values: unknown[]) => {
    const text = trans._n(one, more, n, ...values);
    return messages.has(one) && messages.has(more) ? `⟦${text}⟧` : text;
  }
} as TranslationBundle;

/** What is no text of ours: it has no letters that we would write. */
const NAME = 'ηθι';
const OTHER = 'κλμ';

/** What stands outside of brackets and is neither a name, nor a number with its unit. */
function unbracketed(text: string): string {
  let rest = text;
  for (let before = ''; before !== rest;) {
    before = rest;
    rest = rest.replace(/⟦[^⟦⟧]*⟧/g, ' ');
  }
  return rest
    .replace(/\.ipynb|GPU-\d/g, ' ')
    .replace(/\d[\d.,]*\s*([KMGT]i?B|kB|B|min|s|h|d)(?![a-z])/g, ' ')
    .replace(/[^a-zA-Z⟦⟧]+/g, ' ')
    .trim();
}

function check(...texts: string[]): void {
  const rests = texts.map(text => [text, unbracketed(text)]);
  expect(rests.filter(([, rest]) => rest !== '')).toEqual([]);
}

/** All visible text of an element and its text for screen readers, without commands to type. */
function textsOf(root: Element): string[] {
  const texts: string[] = [];
  for (const element of [root, ...root.querySelectorAll('*')]) {
    if (element.closest('code, style')) {
      continue;
    }
    for (const name of ['title', 'aria-label', 'alt', 'placeholder']) {
      texts.push(element.getAttribute(name) ?? '');
    }
    for (const node of element.childNodes) {
      if (node.nodeType === Node.TEXT_NODE) {
        texts.push(node.textContent ?? '');
      }
    }
  }
  return texts.filter(text => text.trim() !== '');
}

const holder = {
  holder: 'h',
  holder_name: OTHER,
  ahead: 'h',
  ahead_name: OTHER
};
const sizes = {
  need: GiB,
  lack: GiB,
  foreign: GiB,
  fixed: GiB,
  pending_reclaim: GiB
};
const params = {
  ...holder,
  ...sizes,
  arrived: GiB,
  footprint: 2 * GiB,
  victims: [OTHER],
  attempts: 2,
  clients: 2,
  yields_in: 3,
  until_in: 70,
  for: 2
};

const REASONS: (ICode | null)[] = [
  null,
  ...[
    ...['needs_memory', 'serialised', 'making_room', 'filling', 'draining'],
    ...['behind', 'residency', 'foreign_use', 'crowded', 'dying', 'frozen'],
    ...['kept', 'exclusive', 'limited', 'thrashing', 'stuck', 'waking'],
    ...['restore_failed', 'no_room', 'returning', 'host_memory'],
    ...['on_hold', 'quota_gpus', 'gpu_draining', 'of_a_newer_scheduler']
  ].flatMap(code => [
    { code, params },
    { code, params: { ...sizes, yields_in: null } },
    {
      code,
      params: { ...params, kernel: NAME, kernel_for: 9, whose: 'user:η' }
    }
  ])
];

const STATES: State[] = [
  ...(['running', 'idle_lease', 'finishing', 'restoring', 'idle'] as const),
  ...(['hibernated', 'waking', 'prefetching'] as const)
];

const LEFT_ALONE = [
  ...['off', 'driver', 'helper', 'permission', 'container', 'debugger'],
  ...['busy', 'capture', 'gpus', 'nccl', 'ipc', 'managed', 'unevictable'],
  ...['plain', 'failed', 'stuck', 'descriptors', 'of_a_newer_scheduler']
];

const cell = { msg_id: 'm', since: 90, waited: 1, ran: 2 };
const name = `${NAME}.ipynb`;
const sessions = [makeSession(`α/${name}`, 'a')];

const GROUPS: IGroup[] = [
  ...STATES.flatMap(state =>
    [null, cell].map(cell =>
      makeGroup('a', { name, sessions, state, cell, yields_in: 4 })
    )
  ),
  ...REASONS.flatMap((reason, index) => [
    makeGroup('a', {
      name,
      sessions,
      state: 'waiting',
      position: index + 1,
      reason,
      cell,
      estimate: index % 2 ? { seconds: 4, low: 2, high: 90 } : null
    }),
    makeGroup('a', { name, sessions, state: 'restoring', reason, cell }),
    makeWaking('a', { name, sessions, reason, cell })
  ]),
  ...['focus', 'typing', 'queued', 'cell', 'ready'].flatMap(hint =>
    (['evicting', 'waking', 'restoring', 'ready'] as const).map(stage =>
      makeGroup('a', {
        name,
        sessions,
        state: stage === 'ready' ? 'idle_lease' : 'prefetching',
        prefetch: makePrefetch({ hint, stage })
      })
    )
  ),
  ...[1.2, null].map(estimate =>
    makeHibernated('a', {
      name,
      sessions,
      hibernation: makeSleep({ estimate })
    })
  ),
  ...(['parking', 'hibernating', 'waking'] as const).map(state =>
    makeGroup('a', { name, sessions, hibernation: makeSleep({ state }) })
  ),
  ...[null, ...LEFT_ALONE].map(code =>
    makeGroup('a', {
      name,
      sessions,
      hibernation: makeSleep({ state: 'ordered', code, text: NAME })
    })
  ),
  ...LEFT_ALONE.map(code =>
    makeGroup('a', {
      name,
      sessions,
      hibernation: makeSleep({ state: 'refused', code, text: NAME })
    })
  ),
  makeGroup('a', {
    name,
    sessions,
    preferences: {
      priority: 'background',
      keep: true,
      frozen: true,
      on_hold: true,
      memory: GiB,
      request: 0.25,
      limit: 0.5,
      weight: 2,
      exclusive: true
    },
    class: 'background'
  }),
  ...(['running', 'waiting', 'idle'] as const).flatMap(state =>
    [null, cell].map(cell =>
      makeGroup('a', { name, sessions, state, cell, class: 'background' })
    )
  )
];

/** The number of notebooks in a panel; it shows all of so few. */
const ROWS = 5;

const AVAILABILITIES = [
  ...['ok', 'no_driver', 'not_installed', 'bad_configuration', 'disabled'],
  ...['starting', 'scheduler_unreachable', 'remote_kernels', 'forbidden'],
  ...['provisioner_not_default', 'server_extension_missing', 'other_version'],
  ...['server_unreachable', 'not_started', 'of_a_newer_server']
];

const UNSHARED = [
  ...['other_provisioner', 'opted_out', 'started_without_interposer'],
  ...['started_before', 'of_a_newer_server']
];

function statusOf(...groups: IGroup[]): IStatus {
  const status = makeStatus(...groups);
  return { ...status, gpus: status.gpus.map(gpu => ({ ...gpu, name: 'φ' })) };
}

const wording: IWording = {
  trans: pseudo,
  units: 'binary',
  names: new Map([['a', name]])
};

function makeDocuments(model: FakeModel): IDocuments {
  return {
    changed: new Signal({} as IDocuments),
    currentKernel: 'a',
    get currentGroup() {
      return model.groupOf('a');
    },
    of: group => group.sessions,
    names: () => wording.names
  };
}

function makeCommands(model: FakeModel): CommandRegistry {
  const commands = new CommandRegistry();
  addCommands({
    commands,
    model,
    documents: makeDocuments(model),
    trans: pseudo,
    open: () => Promise.resolve()
  });
  return commands;
}

/** @param front - The notebook in front, which has a card. */
function checkPanel(
  status: IStatus | null,
  front: string | null = 'a'
): string[] {
  const model = new FakeModel(status);
  const { container } = render(
    <PanelContent
      model={model}
      commands={makeCommands(model)}
      trans={pseudo}
      names={status =>
        nameGroups(
          status.groups,
          group => group.sessions,
          () => '',
          pseudo
        )
      }
      currentGroup={() => front}
      currentKernel={() => front}
    />
  );
  const texts = textsOf(container);
  check(...texts);
  cleanup();
  return texts;
}

describe('in a language of brackets', () => {
  it('detects a text that is not translated', () => {
    expect(unbracketed(`⟦GPU ⟦1 of 2⟧⟧ ${name} 3 GiB 4 s –`)).toBe('');
    expect(unbracketed('⟦GPU⟧ idle')).toBe('idle');
    expect(unbracketed('7 waiting')).toBe('waiting');
  });

  it.each(GROUPS.map(group => [group.state, group.reason?.code, group]))(
    'the card of the notebook in front translates all of %s %s',
    (_state, _code, group) => {
      const other = makeGroup('h', { name: OTHER, sessions: [] });
      const texts = checkPanel(statusOf(group, other));
      expect(texts.some(text => text.includes('⟦'))).toBe(true);
    }
  );

  it('the rows of other notebooks translate all states and reasons', () => {
    // Several in one panel, because a panel takes as long as many rows.
    for (let first = 0; first < GROUPS.length; first += ROWS) {
      const groups = GROUPS.slice(first, first + ROWS).map((group, index) => ({
        ...group,
        id: `${index}`,
        name: `${NAME}${index}.ipynb`,
        sessions: [makeSession(`${NAME}${index}.ipynb`, `${index}`)]
      }));
      const texts = checkPanel(statusOf(...groups), null);
      const missing = groups.filter(({ name }) => !texts.includes(name));
      expect(missing).toEqual([]);
    }
  });

  it.each(AVAILABILITIES)('the panel translates %s', code => {
    const params = { error: '', socket: '/1', url: '7', provisioner: '8' };
    checkPanel({ ...statusOf(), availability: { code, params } });
  });

  it('the panel translates everything besides notebooks', () => {
    checkPanel(null);
    checkPanel({ ...statusOf(), gpus: [] });
    checkPanel({
      ...statusOf(makeGroup('a', { name, sessions })),
      unshared: UNSHARED.map((code, index) => ({
        kernel_id: `${index}`,
        code,
        params: {},
        sessions: index ? [makeSession(`${NAME}${index}.ipynb`, '1')] : []
      })),
      notices: [
        { group: 'a', code: 'started_without_interposer', params: {}, time: 1 }
      ],
      timeline: {
        ...makeTimeline(
          ...(['burst', 'wait', 'in', 'out', 'hibernated'] as const).map(
            (kind, index) =>
              makeSpan(index, 'a', { kind, name, bytes: GiB, gpu: 'GPU-0' })
          )
        ),
        samples: [[90, 'GPU-0', 50]]
      },
      may: { adjust: false, settings: false }
    });
  });

  it.each([...LEFT_ALONE, null])(
    'panel and commands translate why notebooks cannot be hibernated: %s',
    code => {
      const status: IStatus = {
        ...statusOf(makeGroup('a', { name, sessions })),
        hibernation: { able: code === null, code, text: NAME, moves: false }
      };
      for (const hibernate_after of [600, null]) {
        const settings = status.settings && {
          ...status.settings,
          hibernate_after
        };
        checkPanel({ ...status, settings });
        const commands = makeCommands(new FakeModel({ ...status, settings }));
        for (const { command, args } of PALETTE) {
          check(commands.caption(command, args));
        }
      }
    }
  );

  it.each(GROUPS.map(group => [group.state, group.reason?.code, group]))(
    'notebooks, status bar and commands translate %s %s',
    (_state, _code, group) => {
      const status = statusOf(group);
      const strips = [
        waitingStrip(group, status, wording, 103),
        runningStrip(2, wording),
        resultStrip({ waited: 2, ran: null }, wording),
        resultStrip({ waited: 2, ran: 1 }, wording)
      ];
      for (const { text, title, announcement, actions } of strips) {
        check(text, title, announcement);
        actions.forEach(({ title }) => check(title));
      }
      for (const about of [group, null]) {
        check(
          statusText(status, 'a', about, wording, 103, true),
          statusTitle(status, 'a', about, wording, 103)
        );
      }
      const commands = makeCommands(new FakeModel(status));
      for (const { command, args } of PALETTE) {
        check(commands.label(command, args), commands.caption(command, args));
      }
      check(commands.label(CommandIds.goTo));
    }
  );

  it.each(GROUPS.map(group => [group.state, group.reason?.code, group]))(
    'the sidebar of running kernels translates %s %s',
    (_state, _code, group) => {
      const model = new FakeModel(statusOf(group));
      const section = new GpuSection({
        model,
        documents: makeDocuments(model),
        kernels: { shutdown: () => Promise.resolve() },
        commands: makeCommands(model),
        trans: pseudo
      });
      const { name, shutdownLabel, shutdownAllConfirmationText } = section;
      check(name, shutdownLabel, shutdownAllConfirmationText);
      for (const { label, labelTitle, detail } of section.running()) {
        check(label() as string, labelTitle?.() ?? '', detail?.() ?? '');
      }
      section.dispose();
    }
  );

  it.each(UNSHARED)('the chip translates %s', code => {
    const unshared = { kernel_id: 'a', code, params: {}, sessions: [] };
    const model = new FakeModel();
    const commands = makeCommands(model);
    const state = {
      group: null,
      unshared,
      wording,
      background: false,
      now: 100
    };
    const { container } = render(
      <Chip model={model} commands={commands} state={state} />
    );
    const texts = textsOf(container);
    expect(texts.length).toBeGreaterThan(0);
    check(...texts);
    cleanup();
  });

  it('all explanations are translated', () => {
    for (const rule of [
      ...['came', 'number', 'background', 'class', 'focus', 'length', 'turn'],
      ...['user_share', 'share', 'request', 'use', 'weight', 'growth', '7']
    ]) {
      const one = {
        group: 'h',
        name: OTHER,
        code: rule,
        params: { their_whose: 'user:η', whose: 'team:θ' }
      };
      for (const [next, pace] of [
        ['interactive', 'paused'],
        ['focus', 'bounded'],
        ['use', 'share'],
        ['room', 'paused'],
        ['served', '7']
      ]) {
        const found = {
          before: next === 'room' ? [] : Array(5).fill(one),
          next: { code: next, params: {} },
          pace: {
            code: pace,
            params: { names: next === 'room' ? [] : [OTHER] }
          }
        };
        const answer = { explanation: { groups: [found] } };
        check(explanationText(answer, wording));
      }
    }
    for (const code of AVAILABILITIES) {
      const said = availabilityText({ code, params: {} }, pseudo);
      check(said?.title ?? '', said?.text ?? '');
    }
    for (const code of UNSHARED) {
      const { title, text } = unsharedText(name, { code, params: {} }, pseudo);
      check(title, text);
    }
    for (const { title, text } of [nobodyText(pseudo), noGpuText(pseudo)]) {
      check(title, text);
    }
    for (const code of [
      ...['policy_failed', 'recording_ended', 'stuck', 'other'],
      ...['hibernation_stuck', 'second_kernel', 'reservation_lapsed']
    ]) {
      for (const step of ['park', 'restore']) {
        check(noticeText(name, { code, params: { step } }, pseudo));
      }
    }
    check(
      ...[0, 1].flatMap(resident =>
        [0, 1].flatMap(swapped =>
          [0, 1].map(disk => memoryText({ resident, swapped, disk }, wording))
        )
      ),
      tiersText({ clean: 1, shared: 1 }, wording)
    );
  });
});
