// SPDX-License-Identifier: BSD-3-Clause

// Loaded with its style when the panel is first shown.
import '../../style/panel/index.css';

export { PanelContent } from './content';
