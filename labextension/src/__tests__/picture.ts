// SPDX-License-Identifier: BSD-3-Clause

// What the tests see in place of a picture.
export default '<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0h16v16z"/></svg>';
