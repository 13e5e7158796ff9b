// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { IGroup } from '../core/status';
import { isRunning } from '../core/status';
import type { IGpuShareModel } from '../tokens';
import type { IWording } from '../words/short';

/** What an element needs to know that somebody points at it, or has the focus there. */
type Pointing = Pick<
  React.HTMLAttributes<HTMLElement>,
  'onMouseEnter' | 'onMouseLeave' | 'onFocus' | 'onBlur'
>;

/** Whether there is more to say than its state: who waits has others before it, and the background gives way. */
export function canExplain(group: IGroup): boolean {
  return (
    group.state === 'waiting' ||
    (group.class === 'background' && isRunning(group))
  );
}

/**
 * Which rule put whom before a group, or what holds it back: asked for while somebody points at it.
 *
 * @returns The words, or '' while there are none; and what the element is to be told.
 */
export function useExplanation(
  model: Pick<IGpuShareModel, 'explain'>,
  group: IGroup | null,
  wording: IWording | null
): [text: string, pointing: Pointing] {
  const [pointed, point] = React.useState(false);
  const [text, say] = React.useState('');
  const wordingNow = React.useRef(wording);
  wordingNow.current = wording;
  // It is asked for again when the place in the queue, or what it waits for, is another.
  const { id, position, reason } = group ?? {};
  const place =
    pointed && group && canExplain(group)
      ? JSON.stringify([
          id,
          position,
          reason?.code,
          reason?.params['holder'] ?? reason?.params['ahead']
        ])
      : '';
  React.useEffect(() => {
    let current = place !== '';
    if (!current) {
      say('');
      return;
    }
    Promise.all([
      model.explain(id ?? ''),
      import(/* webpackChunkName: "explanation" */ '../words/explanation')
    ])
      .then(([answer, { explanationText }]) => {
        if (current && wordingNow.current) {
          say(explanationText(answer, wordingNow.current));
        }
      })
      // The reason is there without it.
      .catch(console.error);
    return () => {
      current = false;
    };
    // `place` has the id.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [model, place]);
  const pointing = React.useMemo<Pointing>(() => {
    const begin = (): void => point(true);
    const end = (): void => point(false);
    return {
      onMouseEnter: begin,
      onMouseLeave: end,
      onFocus: begin,
      onBlur: end
    };
  }, []);
  return [text, pointing];
}
