// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { isRightToLeft } from '../words/mentions';

const EXTENSION = '.ipynb';

interface INameProps {
  text: string;
  /** Number of letters before the extension that are always shown. */
  end: number;
}

function SplitName({ text, end }: INameProps): JSX.Element {
  if (isRightToLeft(text)) {
    // Splitting the name would let the browser reorder its parts.
    return (
      <bdi className="jp-GpuShare-run" dir="auto">
        {text}
      </bdi>
    );
  }
  const extension = text.endsWith(EXTENSION) ? EXTENSION : '';
  const stem = text.slice(0, text.length - extension.length);
  return stem.length <= 2 * end ? (
    <bdi>{text}</bdi>
  ) : (
    <span className="jp-GpuShare-split" dir="ltr">
      <span>
        <span>{stem.slice(0, -end)}</span>
        <span>{stem.slice(-end)}</span>
      </span>
      {extension && <span>{extension}</span>}
    </span>
  );
}

/**
 * A name. If it is too long, its extension is hidden first, and then letters in its middle,
 * because similar names often differ at the end.
 */
export const Name = React.memo(SplitName);
