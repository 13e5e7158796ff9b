// SPDX-License-Identifier: BSD-3-Clause
import { fireEvent, screen } from '@testing-library/react';

import {
  GiB,
  makeGroup,
  makeHibernated,
  makeSession,
  makeSpan,
  makeStatus,
  makeTimeline,
  makeWaiting,
  makeWaking,
  plain
} from '../../__tests__/fixtures';
import { busy, openTable, setUp, textOf } from './panel';

beforeAll(() => {
  // axe asks whether letters are pictures; here there are no pictures at all.
  HTMLCanvasElement.prototype.getContext = () => null;
});

describe('the live region', () => {
  const announced = (): string | null => screen.getByRole('status').textContent;
  const console = { sessions: [makeSession('plots', 'plots', 'console')] };

  it("announces only changes of the active console's state", () => {
    const { report } = setUp(
      makeStatus(makeWaiting('plots', 1, console)),
      'plots'
    );
    expect(announced()).toBe('');
    report(makeStatus(makeWaiting('plots', 2, { ...console, at: 101 })));
    expect(announced()).toBe('');
    report(makeStatus(makeGroup('plots', { ...console, state: 'running' })));
    expect(announced()).toBe('plots.ipynb has the GPU');
    report(makeStatus(makeWaiting('plots', 2, console)));
    expect(announced()).toBe('plots.ipynb is waiting for the GPU, position 2');
  });

  it('announces that the active console hibernates and wakes', () => {
    const sessions = [makeSession('c', 'eda', 'console')];
    const { report, container } = setUp(
      makeStatus(makeGroup('eda', { sessions })),
      'eda'
    );
    const announced = (): string =>
      textOf(container.querySelector('[role=status]'));
    report(makeStatus(makeHibernated('eda', { sessions })));
    expect(announced()).toBe('eda.ipynb is hibernated');
    report(makeStatus(makeWaking('eda', { sessions })));
    expect(announced()).toBe('eda.ipynb is waking up');
  });

  it("leaves announcements about a notebook's cell to its strip", () => {
    const { report } = setUp(makeStatus(makeGroup('plots')), 'plots');
    report(makeStatus(makeWaiting('plots', 1)));
    expect(announced()).toBe('');
    report(makeStatus(makeWaiting('plots', 1, { state: 'running' })));
    expect(announced()).toBe('');
    report(makeStatus(makeGroup('plots')));
    expect(announced()).toBe('');
    // Between its cells, a notebook has no strip that could announce this.
    report(makeStatus(makeWaiting('plots', 1, { cell: null })));
    expect(announced()).toBe('plots.ipynb is waiting for the GPU, position 1');
  });

  it('announces nothing about others, or when another notebook becomes active', () => {
    const { report, bringToFront } = setUp(busy, 'eda');
    report({ ...busy, groups: [makeGroup('train'), makeGroup('eda')] });
    expect(announced()).toBe('');
    bringToFront('train');
    expect(announced()).toBe('');
    expect(
      textOf(screen.getByRole('region', { name: 'This notebook' }))
    ).toContain('train.ipynb');
    bringToFront(null);
    expect(announced()).toBe('');
  });
});

describe('the timeline', () => {
  const timeline = makeTimeline(
    makeSpan(1, 'train', { start: 20, end: 50 }),
    makeSpan(2, 'plots', { kind: 'wait', start: 60, end: null }),
    makeSpan(3, 'train', { kind: 'in', start: 70, end: 72, bytes: 3 * GiB }),
    makeSpan(4, 'eda', { start: -500, end: -400 })
  );
  const status = { ...busy, timeline };

  async function readTable(): Promise<string[][]> {
    await openTable();
    return [...document.querySelectorAll('tbody tr')].map(row =>
      [...row.querySelectorAll('td')].map(textOf)
    );
  }

  it('is a picture, and a table with the newest event first', async () => {
    const { container } = setUp(status);
    const lanes = [
      ...container.querySelectorAll('.jp-GpuShare-lanes > div')
    ].map(({ textContent }) => textContent);
    expect(lanes).toEqual(['plots', 'train']);
    const drawn = [...container.querySelectorAll('svg g')].map(lane =>
      [...lane.querySelectorAll('path')]
        .filter(path => path.getAttribute('d'))
        .map(path => path.getAttribute('data-kind'))
    );
    expect(drawn).toEqual([['wait'], ['burst', 'in']]);
    const rows = await readTable();
    expect(
      rows.map(([name, what, , length, size]) => [name, what, length, size])
    ).toEqual([
      ['train', 'restoring memory', '2.0 s', '3 GiB'],
      ['plots', 'waiting', '40 s so far', ''],
      ['train', 'running', '30 s', '']
    ]);
  });

  it('is read with the arrow keys', () => {
    setUp(status);
    const picture = screen.getByRole('slider');
    const text = (): string =>
      plain(picture.getAttribute('aria-valuetext') ?? '');
    const press = (key: string): void => {
      fireEvent.keyDown(picture, { key });
    };
    picture.focus();
    expect(text()).toBe('3 events');
    press('ArrowDown');
    expect(text()).toContain('plots.ipynb · waiting · 40 s so far');
    press('ArrowDown');
    expect(text()).toContain('train.ipynb · restoring memory · 2.0 s · 3 GiB');
    press('ArrowLeft');
    expect(text()).toContain('train.ipynb · running · 30 s');
    expect(
      document.querySelector('.jp-GpuShare-tooltip')!.textContent
    ).toContain('train.ipynb · running');
    press('Escape');
    expect(document.querySelector('.jp-GpuShare-tooltip')).toBeNull();
  });

  it('explains the event under the pointer', () => {
    const { container } = setUp(status);
    const svg = container.querySelector('.jp-GpuShare-marks svg')!;
    // 200 pixels for 300 seconds; the second lane.
    fireEvent(
      svg,
      new MouseEvent('pointermove', {
        bubbles: true,
        clientX: 155,
        clientY: 20
      })
    );
    const tip = container.querySelector('.jp-GpuShare-tooltip');
    expect(textOf(tip)).toContain('train.ipynb · running · 30 s');
    fireEvent.pointerOut(svg, { relatedTarget: container });
    expect(container.querySelector('.jp-GpuShare-tooltip')).toBeNull();
  });

  it('sums up the lanes that are not drawn', async () => {
    const spans = Array.from({ length: 40 }, (_, index) =>
      makeSpan(index, `n${index}`, { start: 20, end: 50 + index })
    );
    const { container } = setUp({ ...busy, timeline: makeTimeline(...spans) });
    expect(container.querySelectorAll('.jp-GpuShare-lanes > div')).toHaveLength(
      12
    );

    screen.getByText('and 28 others: ran 28 times, waited 0 times');
    expect(await readTable()).toHaveLength(40);
  });

  it('shows a text if there are no events', () => {
    setUp({ ...busy, timeline: makeTimeline() });
    screen.getByText('No notebook used the GPU in this period.');
  });
});
