// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

/**
 * Keep the focus with a notebook whose button goes away under it: one that was released
 * goes to another section, and users should not have to look for it from the top of the page.
 */
export function useKeptFocus(): Pick<
  React.HTMLAttributes<HTMLElement>,
  'onFocus' | 'onBlur'
> {
  const focused = React.useRef<HTMLElement | null>(null);
  const group = React.useRef('');
  const body = React.useRef<HTMLElement | null>(null);
  React.useLayoutEffect(() => {
    if (focused.current && !focused.current.isConnected) {
      focused.current = null;
      const rows =
        body.current?.querySelectorAll<HTMLElement>('[data-group]') ?? [];
      [...rows]
        .find(row => row.dataset['group'] === group.current)
        ?.querySelector<HTMLElement>('[aria-haspopup]')
        ?.focus();
    }
  });
  return {
    onFocus: ({ target, currentTarget }) => {
      const row = target.closest<HTMLElement>('[data-group]');
      body.current = currentTarget;
      focused.current = row ? target : null;
      group.current = row?.dataset['group'] ?? '';
    },
    onBlur: ({ target }) => {
      // What is removed may say that it lost the focus before it is gone. A plain timer, once the
      // browser is done with the event: it only reads what is on the page then, and outlives nothing.
      window.setTimeout(() => {
        if (focused.current === target && target.isConnected) {
          focused.current = null;
        }
      });
    }
  };
}
