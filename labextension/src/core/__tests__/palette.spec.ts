// SPDX-License-Identifier: BSD-3-Clause
import { assignColours, COLOURS } from '../palette';

describe('assignColours', () => {
  it('keeps the colours of those who stay, and reuses those of who left', () => {
    const first = assignColours(new Map(), ['a', 'b', 'c']);
    expect([...first.values()]).toEqual([0, 1, 2]);
    const second = assignColours(first, ['c', 'b', 'd']);
    expect(second.get('b')).toBe(1);
    expect(second.get('c')).toBe(2);
    expect(second.get('d')).toBe(0);
  });

  it('shares with who is gone before it shares with who is here', () => {
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

  it('shares colours evenly when there are too few', () => {
    const ids = Array.from({ length: 2 * COLOURS }, (_, index) => `${index}`);
    const uses = [...assignColours(new Map(), ids).values()];
    for (let colour = 0; colour < COLOURS; colour++) {
      expect(uses.filter(use => use === colour)).toHaveLength(2);
    }
  });
});
