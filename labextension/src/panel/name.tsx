// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

const EXTENSION = '.ipynb';

interface INameProps {
  text: string;
  /** Letters of the end, before the extension, that always stay. */
  end: number;
}

function SplitName({ text, end }: INameProps): JSX.Element {
  const extension = text.endsWith(EXTENSION) ? EXTENSION : '';
  const stem = text.slice(0, text.length - extension.length);
  return stem.length <= 2 * end ? (
    <>{text}</>
  ) : (
    <span className="jp-GpuShare-split">
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
