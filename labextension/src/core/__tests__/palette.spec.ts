// SPDX-License-Identifier: BSD-3-Clause
import {
  makeGroup,
  makeSpan,
  makeStatus,
  makeTimeline
} from '../../__tests__/fixtures';
import { assignColours, COLOURS, Palette } from '../palette';

describe('Palette', () => {
  it('keeps the colour of a notebook until it has left the timeline, too', () => {
    const palette = new Palette();
    const timeline = makeTimeline(makeSpan(1, 'a'));
    const [a, b] = [makeGroup('a'), makeGroup('b')];
    const first = palette.coloursOf({ ...makeStatus(a, b), timeline });
    const gone = palette.coloursOf({ ...makeStatus(b), timeline });
    expect(gone).toBe(first);
    expect(first.get('a')).toBe(0);
    const back = palette.coloursOf({ ...makeStatus(b, a), timeline });
    expect(back).toBe(first);
    const left = palette.coloursOf(makeStatus(b));
    expect([...left]).toEqual([['b', first.get('b')]]);
  });
});

describe('assignColours', () => {
  it('keeps the colours of present notebooks and reuses those of notebooks that left', () => {
    const first = assignColours(new Map(), ['a', 'b', 'c']);
    expect([...first.values()]).toEqual([0, 1, 2]);
    const second = assignColours(first, ['c', 'b', 'd']);
    expect(second.get('b')).toBe(1);
    expect(second.get('c')).toBe(2);
    expect(second.get('d')).toBe(0);
  });

  it('repeats the colours of notebooks that are gone first', () => {
    const here = ['a', 'b'];
    const gone = Array.from({ length: 3 * COLOURS }, (_, index) => `${index}`);
    const first = assignColours(new Map(), here, gone);
    const second = assignColours(first, [...here, 'c', 'd'], gone);
    const colours = [...here, 'c', 'd'].map(id => second.get(id));
    expect(new Set(colours).size).toBe(4);
    for (const id of [...here, ...gone]) {
      expect(second.get(id)).toBe(first.get(id));
    }
  });

  it('repeats colours evenly when there are too few', () => {
    const ids = Array.from({ length: 2 * COLOURS }, (_, index) => `${index}`);
    const uses = [...assignColours(new Map(), ids).values()];
    for (let colour = 0; colour < COLOURS; colour++) {
      expect(uses.filter(use => use === colour)).toHaveLength(2);
    }
  });
});
