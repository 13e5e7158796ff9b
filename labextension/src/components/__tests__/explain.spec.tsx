// SPDX-License-Identifier: BSD-3-Clause
import { act, fireEvent, render, screen } from '@testing-library/react';
import React from 'react';

import { useExplanation } from '../explain';
import { explanationText } from '../../words/explanation';
import type { IGroup } from '../../core/status';
import type { IWording } from '../../words/short';
import {
  explained,
  FakeModel,
  makeGroup,
  makeWaiting,
  plain,
  trans
} from '../../__tests__/fixtures';

const wording: IWording = {
  trans,
  units: 'binary',
  names: new Map([['train', 'deep/train.ipynb']])
};

const before = (code: string, group = 'train', params = {}): IBefore => ({
  group,
  name: `${group}.ipynb`,
  code,
  params
});

type IBefore = Parameters<typeof explained>[0];

/** The explanation of a waiting group, with ordinary spaces. */
const explanationOf = (found: object): string =>
  plain(explanationText({ explanation: { groups: [found] } }, wording));

describe('explanationText', () => {
  it.each([
    ['came', { own: 5, theirs: 3 }, 'it has been waiting 2 s longer'],
    ['number', {}, 'it arrived first'],
    [
      'retry',
      {},
      'it keeps its place in the queue, because there was no room for it before'
    ],
    ['made_way', {}, 'it preempted this notebook'],
    ['background', {}, 'it is interactive, and this notebook has low priority'],
    ['focus', {}, "it is open in its user's browser"],
    [
      'length',
      { theirs: 0.2, own: 4 },
      'it is expected to need the GPU for 0.2 s, and this notebook for 4 s; short bursts go first'
    ],
    [
      'user_share',
      {
        whose: 'user:ada',
        used: 0.4,
        their_whose: 'team:course',
        their_used: 0.051
      },
      'over the last 10 s, team course used 5.1% of the GPU and user ada used 40%'
    ],
    [
      'share',
      {},
      'it has had less GPU time over the last 10 s, relative to its entitlement and weight'
    ],
    ['turn', {}, 'it belongs to a user whose notebooks last ran longer ago']
  ])('words %s', (code, params, expected) => {
    expect(explanationOf({ before: [before(code, 'train', params)] })).toBe(
      `deep/train is ahead: ${expected}`
    );
  });

  it('names the rule of an unknown policy', () => {
    expect(explanationOf({ before: [before('moon', 'x')] })).toBe(
      'x is ahead because of the rule "moon"'
    );
  });

  it('names three groups and counts the others', () => {
    const lines = explanationOf({
      before: [...'abcde'].map(id => before('came', id))
    }).split('\n');
    expect(lines.map(line => line.split(' ')[0])).toEqual([
      ...['a', 'b', 'c', 'and']
    ]);
    expect(lines[3]).toBe('and 2 others');
  });

  it.each([
    ['room', [], 'No notebook is ahead of it.'],
    ['served', [before('came')], ''],
    [
      'interactive',
      [before('background')],
      'If it were interactive, it would go ahead of deep/train.'
    ]
  ])('explains what must happen to be next: %s', (code, others, expected) => {
    const lines = explanationOf({ before: others, next: { code, params: {} } });
    expect(lines.split('\n').slice(others.length).join()).toBe(expected);
  });

  it.each([
    ['paused', { names: ['x/plots.ipynb'] }, 'Paused while plots is running.'],
    [
      'paused',
      { names: [] },
      'Paused until other notebooks have had their GPU time.'
    ],
    ['share', { share: 0.5 }, 'Limited to 50% of GPU time.']
  ])('explains what limits a running group: %s', (code, params, expected) => {
    expect(explanationOf({ before: [], pace: { code, params } })).toBe(
      expected
    );
  });

  it.each([
    null,
    7,
    {},
    { explanation: { groups: [] } },
    ...[1, [null, 3, { group: 'a' }]].map(before => ({
      explanation: { groups: [{ before, next: null, pace: 'x' }] }
    }))
  ])('is empty without an explanation: %j', answer => {
    expect(explanationText(answer, wording)).toBe('');
  });
});

describe('an explanation', () => {
  let model: FakeModel;

  function Asked({ group }: { group: IGroup }): JSX.Element {
    const [text, pointing] = useExplanation(model, group, wording);
    return (
      <button type="button" title={text} {...pointing}>
        why
      </button>
    );
  }

  const why = (): HTMLElement => screen.getByText('why');

  /** Do something, and let come what was asked for. */
  async function settle(something: () => void): Promise<void> {
    await act(async () => {
      something();
      await new Promise(resolve => setTimeout(resolve));
    });
  }

  beforeEach(() => {
    model = new FakeModel();
    model.explanation = explained(before('came'));
  });

  it.each([
    ['pointed at', fireEvent.mouseEnter, fireEvent.mouseLeave],
    ['focused', fireEvent.focus, fireEvent.blur]
  ])('is requested when it is %s', async (_, begin, end) => {
    render(<Asked group={makeWaiting('plots', 1)} />);
    expect(model.explained).toEqual([]);
    await settle(() => begin(why()));
    expect(model.explained).toEqual(['plots']);
    expect(why().title).toContain('deep/train is ahead');
    await settle(() => end(why()));
    expect(why().title).toBe('');
  });

  it('is requested again when the position changes, but not as time passes', async () => {
    const { rerender } = render(<Asked group={makeWaiting('plots', 2)} />);
    await settle(() => fireEvent.mouseEnter(why()));
    await settle(() =>
      rerender(<Asked group={makeWaiting('plots', 2, { at: 101 })} />)
    );
    expect(model.explained).toHaveLength(1);
    await settle(() => rerender(<Asked group={makeWaiting('plots', 1)} />));
    expect(model.explained).toHaveLength(2);
    await settle(() => rerender(<Asked group={makeGroup('plots')} />));
    expect(model.explained).toHaveLength(2);
    expect(why().title).toBe('');
  });

  it('is not requested for a group that is not waiting', async () => {
    render(<Asked group={makeGroup('plots')} />);
    await settle(() => fireEvent.mouseEnter(why()));
    expect(model.explained).toEqual([]);
  });
});
