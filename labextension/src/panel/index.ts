// SPDX-License-Identifier: BSD-3-Clause

// What is loaded when the panel is first shown, its style too.
import '../../style/panel/index.css';

export { PanelContent } from './content';
