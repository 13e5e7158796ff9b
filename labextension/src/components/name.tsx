// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import { isRightToLeft } from '../words/mentions';

const EXTENSION = '.ipynb';

interface INameProps {
  text: string;
  /** Letters of the end, before the extension, that always stay. */
  end: number;
}

function SplitName({ text, end }: INameProps): JSX.Element {
  if (isRightToLeft(text)) {
    // Its parts would be put in another order: it stays one run of its own direction.
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
 * A name that loses its extension where it is too long, and then letters in its middle:
 * ends tell names apart.
 */
export const Name = React.memo(SplitName);
