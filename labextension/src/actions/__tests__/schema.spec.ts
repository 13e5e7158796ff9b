// SPDX-License-Identifier: BSD-3-Clause
import schema from '../../../schema/plugin.json';
import { ACTIONS, entriesOf } from '../table';

const menus = schema['jupyter.lab.menus'];

/** The entries of a context menu; null is a separator. */
function entriesAt(selector: string): unknown[] {
  const items = menus.context.filter(item => item.selector === selector);
  const ranks = items.map(({ rank }) => rank);
  expect(ranks).toEqual([...ranks].sort((a, b) => a - b));
  return items.map(item =>
    'command' in item ? { command: item.command, args: item.args } : null
  );
}

describe('the schema for JupyterLab', () => {
  it.each([
    ['row', '.jp-GpuShare-row[data-group]'],
    ['chip', '.jp-GpuShare-chip[data-group]']
  ] as const)('has the menu of a %s as a context menu', (place, selector) => {
    expect(entriesAt(selector)).toEqual(entriesOf(place, { isContext: true }));
  });

  it.each([
    ['tab', '#jp-main-dock-panel .lm-DockPanel-tabBar .lm-TabBar-tab', [null]],
    ['file', '.jp-DirListing-item[data-isdir="false"].jp-mod-running', []],
    ['kernel', '.jp-RunningSessions-item.jp-mod-kernel', [null]]
  ])(
    "adds to JupyterLab's own context menu of a %s",
    (_, selector, separator) => {
      const args = { isContext: true, isDocument: true };
      expect(entriesAt(selector)).toEqual([
        ...separator,
        ...entriesOf('document', args)
      ]);
    }
  );

  it('names only existing commands', () => {
    const commands = ACTIONS.map(({ command }) => command);
    const named = [
      ...menus.main.flatMap(({ items }) => items),
      ...schema['jupyter.lab.shortcuts']
    ];
    for (const { command } of named) {
      expect(commands).toContain(command);
    }
  });

  it('puts the chip after the buttons, and not among the last items, which a narrow page hides', () => {
    const [{ rank } = { rank: 0 }] = schema['jupyter.lab.toolbars'].Notebook;
    // JupyterLab: the type of the cell has 40, the spacer before the kernel 100.
    expect(rank).toBeGreaterThan(40);
    expect(rank).toBeLessThan(100);
  });
});
