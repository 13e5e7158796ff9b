// SPDX-License-Identifier: BSD-3-Clause
import { FocusTeller } from '../focus';
import { FakeDocuments } from '../../__tests__/notebooks';
import { FakeModel, makeStatus } from '../../__tests__/fixtures';

let focused: boolean;
let model: FakeModel;
let documents: FakeDocuments;
let teller: FocusTeller;

beforeEach(() => {
  jest.useFakeTimers();
  focused = true;
  jest.spyOn(document, 'hasFocus').mockImplementation(() => focused);
  model = new FakeModel();
  documents = new FakeDocuments(model, 'plots');
  teller = new FocusTeller(model, documents);
});

afterEach(() => {
  teller.dispose();
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

const settle = (): unknown => jest.advanceTimersByTime(200);

describe('the focus', () => {
  it('is told when the GPU is shared, and what is in front afterwards', () => {
    settle();
    expect(model.fronts).toEqual([]);
    model.status = makeStatus();
    settle();
    expect(model.fronts).toEqual(['plots']);
    // Nothing new.
    model.status = makeStatus();
    show('plots');
    settle();
    show('train');
    settle();
    show(null);
    settle();
    expect(model.fronts).toEqual(['plots', 'train', null]);
  });

  it('is told once somebody stays at a document', () => {
    model.status = makeStatus();
    settle();
    for (const kernel of ['a', 'b', 'c']) {
      show(kernel);
      jest.advanceTimersByTime(100);
    }
    expect(model.fronts).toEqual(['plots']);
    settle();
    expect(model.fronts).toEqual(['plots', 'c']);
    show('a');
    show('c');
    settle();
    expect(model.fronts).toEqual(['plots', 'c']);
  });

  it('goes when the page loses it, and comes back', () => {
    model.status = makeStatus();
    settle();
    focus(false);
    settle();
    show('train');
    settle();
    focus(true);
    settle();
    expect(model.fronts).toEqual(['plots', null, 'train']);
  });

  it('costs nothing while the page has none, or is hidden', () => {
    focused = false;
    model.status = makeStatus();
    show('train');
    settle();
    focused = true;
    const hidden = jest.spyOn(document, 'hidden', 'get').mockReturnValue(true);
    window.dispatchEvent(new Event('focus'));
    settle();
    expect(model.fronts).toEqual([]);
    expect(jest.getTimerCount()).toBe(0);
    hidden.mockRestore();
    focus(true);
    settle();
    expect(model.fronts).toEqual(['train']);
  });

  it('is told to nobody where nothing is shared, and again to who comes', () => {
    model.status = makeStatus();
    settle();
    const code = 'scheduler_unreachable';
    model.status = { ...makeStatus(), availability: { code, params: {} } };
    show('train');
    settle();
    focus(false);
    settle();
    expect(model.fronts).toEqual(['plots']);
    focus(true);
    model.status = makeStatus();
    settle();
    model.status = { ...makeStatus(), stream: 'another server' };
    settle();
    expect(model.fronts).toEqual(['plots', 'train', 'train']);
  });

  it('is nobody’s after it is disposed', () => {
    model.status = makeStatus();
    teller.dispose();
    focus(true);
    settle();
    expect(model.fronts).toEqual([]);
  });
});
