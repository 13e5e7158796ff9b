// SPDX-License-Identifier: BSD-3-Clause
import type { ITargetOptions } from '../target';
import { targetGroup } from '../target';
import {
  FakeModel,
  makeGroup,
  makeSession,
  makeStatus
} from '../../__tests__/fixtures';

const sharing = makeGroup('plots', {
  sessions: [makeSession('plots.ipynb', 'plots')]
});

/** A widget of a tracker whose kernel has the same name. */
function tracker(...kernels: string[]): ITargetOptions['notebooks'] {
  const widgets = kernels.map(id => ({
    id: `id-${id}`,
    sessionContext: { session: { kernel: { id } } }
  }));
  return {
    find: (is: (widget: unknown) => boolean) => widgets.find(is)
  } as unknown as ITargetOptions['notebooks'];
}

/** What is found where a context menu opens on the innermost of these elements. */
function found(html: string, options: Partial<ITargetOptions> = {}): unknown {
  document.body.innerHTML = html;
  const app = {
    contextMenuHitTest: (is: (node: HTMLElement) => boolean) => {
      let node = document.querySelector<HTMLElement>('.here');
      while (node && !is(node)) {
        node = node.parentElement;
      }
      return node ?? undefined;
    }
  };
  return targetGroup({
    app,
    model: new FakeModel(makeStatus(sharing)),
    sessions: {
      running: () =>
        [
          { path: 'other.ipynb', kernel: { id: 'other' } },
          { path: 'plots.ipynb', kernel: { id: 'plots' } }
        ][Symbol.iterator]()
    } as ITargetOptions['sessions'],
    contents: { localPath: path => path.replace('RTC:', '') },
    notebooks: tracker('plots', 'other'),
    consoles: null,
    files: null,
    ...options
  });
}

/** A file browser in which one file is selected. */
function selecting(path: string): Partial<ITargetOptions> {
  const selectedItems = (): unknown => [{ path }][Symbol.iterator]();
  return {
    files: {
      tracker: { currentWidget: { selectedItems } }
    } as unknown as ITargetOptions['files']
  };
}

describe('The group of a context menu', () => {
  it('is that of a row or chip', () => {
    expect(found('<li data-group="a"><span class="here"></span></li>')).toBe(
      'a'
    );
  });

  it('is that of a tab', () => {
    const tab = (id: string): string =>
      `<li data-id="${id}"><span class="here"></span></li>`;
    expect(found(tab('id-plots'))).toBe('plots');
    expect(found(tab('id-other'))).toBeNull();
    expect(found(tab('some-panel'))).toBeNull();
    expect(
      found(tab('id-plots'), {
        notebooks: null,
        consoles: tracker('plots') as unknown as ITargetOptions['consoles']
      })
    ).toBe('plots');
  });

  it('is that of a file, also in another drive', () => {
    const file = '<li class="jp-DirListing-item here"></li>';
    expect(found(file, selecting('plots.ipynb'))).toBe('plots');
    expect(found(file, selecting('RTC:plots.ipynb'))).toBe('plots');
    expect(found(file, selecting('other.ipynb'))).toBeNull();
    expect(found(file, selecting('never-opened.ipynb'))).toBeNull();
    expect(found(file)).toBeNull();
  });

  it('is that of a running kernel', () => {
    const item = (id: string): string =>
      `<div data-context="${id}"><span class="here"></span></div>`;
    expect(found(item('plots'))).toBe('plots');
    expect(found(item('other'))).toBeNull();
  });

  it('is none elsewhere', () => {
    expect(found('<p class="here"></p>')).toBeNull();
  });
});
