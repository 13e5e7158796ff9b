// SPDX-License-Identifier: BSD-3-Clause
import React from 'react';

import type { ITranslation } from '../core/translation';

interface IBoundaryProps {
  trans: ITranslation;
  children: React.ReactNode;
}

/** Shows an error message where React would leave an empty panel. */
export class Boundary extends React.Component<
  IBoundaryProps,
  { error: Error | null }
> {
  state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  render(): React.ReactNode {
    const { trans, children } = this.props;
    const { error } = this.state;
    if (error === null) {
      return children;
    }
    return (
      <div className="jp-GpuShare-explanation" role="alert">
        <h3>{trans.__('The panel could not be displayed')}</h3>
        <p>
          {trans.__(
            'This is a bug in jupyter-gpushare. GPU sharing itself still works. Details: %1',
            error.message
          )}
        </p>
        <button
          type="button"
          className="jp-GpuShare-again"
          onClick={() => this.setState({ error: null })}
        >
          {trans.__('Try again')}
        </button>
      </div>
    );
  }
}
