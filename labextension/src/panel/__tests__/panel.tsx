// SPDX-License-Identifier: BSD-3-Clause
import { Signal } from '@lumino/signaling';
import { act, fireEvent, render, screen, within } from '@testing-library/react';
import axe from 'axe-core';
import React from 'react';

import { FakeCommands } from '../../__tests__/commands';
import {
  FakeModel,
  makeGroup,
  makeStatus,
  makeWaiting,
  plain,
  trans
} from '../../__tests__/fixtures';
import type { IStatus } from '../../core/status';
import { PanelContent } from '../content';

interface ISetUp {
  model: FakeModel;
  commands: FakeCommands;
  container: HTMLElement;
  /** Make another notebook active. */
  bringToFront: (group: string | null) => void;
  /** Set a new status. */
  report: (status: IStatus) => void;
}

export function setUp(
  status: IStatus | null,
  front: string | null = null
): ISetUp {
  const model = new FakeModel(status);
  const commands = new FakeCommands(model);
  const changed = new Signal<object, void>({});
  let current = front;
  const { container } = render(
    <PanelContent
      model={model}
      commands={commands}
      trans={trans}
      names={({ groups }) => new Map(groups.map(({ id, name }) => [id, name]))}
      currentGroup={() => current}
      currentKernel={() => current}
      changed={changed}
    />
  );
  return {
    model,
    commands,
    container,
    bringToFront: group =>
      act(() => {
        current = group;
        changed.emit();
      }),
    report: status =>
      act(() => {
        model.status = status;
      })
  };
}

/** The text of an element with ordinary spaces. */
export function textOf(element: Element | null | undefined): string {
  return plain(element?.textContent ?? '');
}

/** The rows of a section. */
export function rowsOf(name: string): HTMLElement[] {
  return [...screen.getByRole('region', { name }).querySelectorAll('li')];
}

export function rowOf(name: string): HTMLElement {
  const row = [...document.querySelectorAll('li')].find(
    row => within(row).queryByText(name) !== null
  );
  if (!row) {
    throw new Error(`There is no row of ${name}.`);
  }
  return row;
}

export const running = makeGroup('train', {
  state: 'running',
  since: 90,
  cell: { msg_id: 'm', since: 88, waited: 0, ran: 9 },
  yields_in: 5
});

export const busy = makeStatus(
  running,
  makeWaiting('plots', 1),
  makeGroup('eda')
);

/** Open the table of the timeline; browsers send the event a moment later. */
export async function openTable(): Promise<void> {
  await act(async () => {
    fireEvent.click(screen.getByText('Show as a table'));
    await new Promise(resolve => setTimeout(resolve));
  });
}

export async function violations(container: HTMLElement): Promise<string[]> {
  const { violations } = await axe.run(container, {
    // Colours and regions are those of the page, which is not here.
    rules: { 'color-contrast': { enabled: false }, region: { enabled: false } }
  });
  return violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`
  );
}
