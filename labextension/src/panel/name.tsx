// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

interface INameProps {
  text: string;
  /** Letters of the end that always stay. */
  end: number;
}

/** A name that loses letters in its middle where it is too long: ends tell names apart. */
export function Name({ text, end }: INameProps): JSX.Element {
  return text.length <= 2 * end ? (
    <>{text}</>
  ) : (
    <span className="jp-GpuShare-split">
      <span>{text.slice(0, -end)}</span>
      <span>{text.slice(-end)}</span>
    </span>
  );
}
