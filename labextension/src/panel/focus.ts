// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

/**
 * Keep the focus on a notebook when its focused button is removed. A released notebook moves to
 * another section, for example, and keyboard users should not lose their place.
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
      // An element can lose the focus just before it is removed, so look again after the event. A
      // plain timer is enough, because the callback only reads the page.
      window.setTimeout(() => {
        if (focused.current === target && target.isConnected) {
          focused.current = null;
        }
      });
    }
  };
}
