// SPDX-License-Identifier: BSD-3-Clause
import { FocusReporter } from '../focus';
import { FakeDocuments } from '../../__tests__/notebooks';
import {
  FakeModel,
  GiB,
  makeGroup,
  makeStatus
} from '../../__tests__/fixtures';
import type { IGroup, IStatus } from '../../core/status';

let focused: boolean;
let model: FakeModel;
let documents: FakeDocuments;
let reporter: FocusReporter;

beforeEach(() => {
  jest.useFakeTimers();
  focused = true;
  jest.spyOn(document, 'hasFocus').mockImplementation(() => focused);
  model = new FakeModel();
  documents = new FakeDocuments(model, 'plots');
  reporter = new FocusReporter(model, documents);
});

afterEach(() => {
  reporter.dispose();
  jest.restoreAllMocks();
  jest.useRealTimers();
});

/** Bring a document to the front. */
function show(kernel: string | null): void {
  documents.currentKernel = kernel;
  documents.changed.emit();
}

function focus(on: boolean): void {
  focused = on;
  window.dispatchEvent(new Event(on ? 'focus' : 'blur'));
}

const settle = (): Promise<void> => jest.advanceTimersByTimeAsync(200);

describe('the focus', () => {
  it('is reported once the GPU is shared, and when it changes', async () => {
    await settle();
    expect(model.fronts).toEqual([]);
    model.status = makeStatus();
    await settle();
    expect(model.fronts).toEqual(['plots']);
    // Nothing new.
    model.status = makeStatus();
    show('plots');
    await settle();
    show('train');
    await settle();
    show(null);
    await settle();
    expect(model.fronts).toEqual(['plots', 'train', null]);
  });

  it('is reported once a document stays active', async () => {
    model.status = makeStatus();
    await settle();
    for (const kernel of ['a', 'b', 'c']) {
      show(kernel);
      await jest.advanceTimersByTimeAsync(100);
    }
    expect(model.fronts).toEqual(['plots']);
    await settle();
    expect(model.fronts).toEqual(['plots', 'c']);
    show('a');
    show('c');
    await settle();
    expect(model.fronts).toEqual(['plots', 'c']);
  });

  it('ends when the page loses it, and is reported again', async () => {
    model.status = makeStatus();
    await settle();
    focus(false);
    await settle();
    show('train');
    await settle();
    focus(true);
    await settle();
    expect(model.fronts).toEqual(['plots', null, 'train']);
  });

  it('costs nothing while the page has none, or is hidden', async () => {
    focused = false;
    model.status = makeStatus();
    show('train');
    await settle();
    focused = true;
    const hidden = jest.spyOn(document, 'hidden', 'get').mockReturnValue(true);
    window.dispatchEvent(new Event('focus'));
    await settle();
    expect(model.fronts).toEqual([]);
    expect(jest.getTimerCount()).toBe(0);
    hidden.mockRestore();
    focus(true);
    await settle();
    expect(model.fronts).toEqual(['train']);
  });

  it('is not reported while nothing is shared, and is repeated to a new server', async () => {
    model.status = makeStatus();
    await settle();
    const code = 'scheduler_unreachable';
    model.status = { ...makeStatus(), availability: { code, params: {} } };
    show('train');
    await settle();
    focus(false);
    await settle();
    expect(model.fronts).toEqual(['plots']);
    focus(true);
    model.status = makeStatus();
    await settle();
    model.status = { ...makeStatus(), stream: 'another server' };
    await settle();
    expect(model.fronts).toEqual(['plots', 'train', 'train']);
  });

  it('reports nothing after it is disposed', async () => {
    model.status = makeStatus();
    reporter.dispose();
    focus(true);
    await settle();
    expect(model.fronts).toEqual([]);
  });
});

describe('hints', () => {
  /** A group whose memory is on the GPU, or in host memory. */
  const groupOf = (id: string, place: 'gpu' | 'host'): IGroup =>
    makeGroup(id, {
      gpus: [
        {
          uuid: 'GPU-0',
          footprint: GiB,
          resident: place === 'gpu' ? GiB : 0,
          swapped: place === 'gpu' ? 0 : GiB,
          unevictable: 0,
          context: 0
        }
      ]
    });

  /** The reports since the last call, with their hints. */
  const reports = (): string[] => {
    const hints = model.hints.splice(0);
    return model.fronts
      .splice(0)
      .map((front, index) => `${front} ${hints[index] ?? '-'}`);
  };

  const evicted = (settings: Partial<IStatus['settings']> = {}): IStatus => {
    const status = makeStatus(groupOf('plots', 'host'));
    return {
      ...status,
      settings: status.settings && { ...status.settings, ...settings }
    };
  };

  /** Press a key in an element of the active document. */
  function press(
    key: string,
    changes: KeyboardEventInit = {},
    at: Element = editor
  ): void {
    at.dispatchEvent(
      new KeyboardEvent('keydown', { key, bubbles: true, ...changes })
    );
  }

  let editor: HTMLElement;

  /** An editor in a document, as all front ends have it. Its own handlers let no key through. */
  function makeEditor(document_: string): HTMLElement {
    const node = document.createElement('div');
    node.className = document_;
    const editor = node.appendChild(document.createElement('div'));
    editor.addEventListener('keydown', event => event.stopPropagation());
    document.body.append(node);
    return editor;
  }

  beforeEach(() => {
    editor = makeEditor('jp-Notebook');
    model.hints.splice(0);
  });

  afterEach(() => {
    document.body.replaceChildren();
  });

  it('are one with the focus and one with the first key, and none while the user types', async () => {
    model.status = evicted();
    await settle();
    expect(reports()).toEqual(['plots focus']);
    for (let count = 0; count < 50; count++) {
      press('x');
      await jest.advanceTimersByTimeAsync(100);
    }
    expect(reports()).toEqual(['plots typing']);
    await jest.advanceTimersByTimeAsync(29_000);
    press('x');
    expect(reports()).toEqual([]);
    await jest.advanceTimersByTimeAsync(30_000);
    press('x');
    press('y');
    expect(reports()).toEqual(['plots typing']);
  });

  it('are a single message if the first key comes at once', async () => {
    model.status = evicted();
    press('x');
    await settle();
    expect(reports()).toEqual(['plots typing']);
  });

  it.each([
    ['all memory is on the GPU', makeStatus(groupOf('plots', 'gpu'))],
    ['the kernel has not used the GPU', makeStatus(groupOf('train', 'host'))],
    ['the administrator has switched it off', evicted({ prefetch: false })]
  ])('are none if %s', async (_, status) => {
    model.status = status;
    await settle();
    press('x');
    expect(reports()).toEqual(['plots -']);
  });

  it('are none if the user has switched it off', async () => {
    model.preferences = { ...model.preferences, prefetch: false };
    model.status = evicted();
    await settle();
    press('x');
    expect(reports()).toEqual(['plots -']);
    model.preferences = { ...model.preferences, prefetch: true };
    press('x');
    expect(reports()).toEqual(['plots typing']);
  });

  it.each<[string, KeyboardEventInit]>([
    ['Shift', { shiftKey: true }],
    ['Control', { ctrlKey: true }],
    ['AltGraph', {}],
    ['s', { ctrlKey: true }],
    ['s', { metaKey: true }],
    ['Tab', { altKey: true }],
    ['Enter', { shiftKey: true }],
    ['Enter', { ctrlKey: true }]
  ])('do not come from the key %s with %j', async (key, changes) => {
    model.status = evicted();
    await settle();
    expect(reports()).toEqual(['plots focus']);
    press(key, changes);
    expect(reports()).toEqual([]);
    press('X', { shiftKey: true });
    expect(reports()).toEqual(['plots typing']);
  });

  it('come from a shortcut that removes the selected cell', async () => {
    model.status = evicted();
    await settle();
    reports();
    const cut = ({ target }: Event): void => (target as Element).remove();
    document.addEventListener('keydown', cut, true);
    press('x');
    document.removeEventListener('keydown', cut, true);
    expect(reports()).toEqual(['plots typing']);
  });

  it('come from consoles, and not from other parts of the page', async () => {
    model.status = evicted();
    await settle();
    reports();
    press('x', {}, makeEditor('jp-FileEditor'));
    press('x', {}, document.body);
    expect(reports()).toEqual([]);
    press('x', {}, makeEditor('jp-CodeConsole'));
    expect(reports()).toEqual(['plots typing']);
  });

  it('are given on the return to a page that has heard of no changes', async () => {
    model.status = makeStatus(groupOf('plots', 'gpu'));
    await settle();
    const hidden = jest.spyOn(document, 'hidden', 'get').mockReturnValue(true);
    window.dispatchEvent(new Event('visibilitychange'));
    await settle();
    expect(reports()).toEqual(['plots -', 'null -']);
    await jest.advanceTimersByTimeAsync(60_000);
    hidden.mockRestore();
    window.dispatchEvent(new Event('visibilitychange'));
    await settle();
    expect(reports()).toEqual(['plots focus']);
    // Now it hears that the memory is still there.
    model.status = makeStatus(groupOf('plots', 'gpu'));
    press('x');
    expect(reports()).toEqual([]);
  });

  it('are given again once the memory was restored and evicted', async () => {
    model.status = evicted();
    await settle();
    press('x');
    expect(reports()).toEqual(['plots focus', 'plots typing']);
    model.status = makeStatus(groupOf('plots', 'gpu'));
    for (let count = 0; count < 20; count++) {
      await jest.advanceTimersByTimeAsync(2_000);
      press('x');
    }
    expect(reports()).toEqual([]);
    model.status = evicted();
    press('x');
    press('x');
    expect(reports()).toEqual(['plots typing']);
  });

  it('end with the reporter', async () => {
    model.status = evicted();
    await settle();
    reports();
    reporter.dispose();
    press('x');
    expect(reports()).toEqual([]);
  });
});
